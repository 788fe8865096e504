"""A speedrun's record: one line for a person, one JSON line for a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.finetune.task_results import GLUE, GLUE_5, Suite
from electra.fsio import append_synced, read_bytes, write_atomic
from electra.jsontext import parse_json
from electra.metrics.spread import summarise
from electra.progress import scaled
from electra.records import read_record
from electra.report.reading import Run, number

FILE, FORMAT = "records.jsonl", 1
MAX_BYTES = 64 << 20
HELD_OUT = ("rtd_loss", "rtd_auc", "mlm_loss", "mlm_accuracy")
CURVE = ("time_s", "step", *HELD_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """A task's score over the seeds, in percent."""

    title: str
    metric: str
    median: float
    mean: float
    std: float
    seeds: dict[str, float]
    """By seed."""

    @staticmethod
    def over(seeds: dict[str, float], *, title: str, metric: str) -> TaskScore:
        """The score of a task from its seeds'."""
        summary = summarise(seeds.values())
        middle = {"median": summary.median, "mean": summary.mean, "std": summary.std}
        return TaskScore(title=title, metric=metric, **middle, seeds=seeds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """GLUE-5 over the seeds, in percent."""

    glue5: float
    """The mean of the tasks' medians."""
    glue5_mean: float
    """The mean over tasks and seeds."""
    glue5_std: float
    """Standard deviation, over the seeds, of a seed's mean over the tasks."""
    tasks: dict[str, TaskScore]
    notes: tuple[str, ...] = ()
    """Where the rows are not the published ones, and stuck seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What a speedrun was and what came of it."""

    entry: str | None
    """None where it was a preset."""
    preset: str
    changes: tuple[str, ...]
    """`key=value` that differ from the entry or preset."""
    finetune: tuple[str, ...]
    """`key=value` that differ from the paper's fine-tuning."""
    minutes: float
    """Asked for."""
    seconds: float
    """Spent, from the command's start, over all resumes."""
    steps: int
    tokens: float
    """Trained on, without padding."""
    tokens_padded: float
    flops_real: float
    """Of the matrix products."""
    flops_paper: float
    """By the paper's rules."""
    parameters: int
    seed: int
    """Of pre-training."""
    purpose: str
    """`report` or `choice`: which fine-tuning seeds."""
    scores: Scores
    held_out: dict[str, float | None]
    """The last evaluation."""
    curve: list[list[float | None]]
    """Every evaluation: seconds, step, then as in `held_out`."""
    device: str
    data_sha256: str
    commit: str | None
    scorer: str = "electra"
    """Which program fine-tuned."""
    text: str = ""
    """What it was trained on, in words."""
    settings: dict[str, str] = field(default_factory=dict)
    """Every key of its configuration with its value; empty in records of before these were kept."""

    @property
    def title(self) -> str:
        """Entry or preset with what was changed; the seed stands elsewhere, and how it was saved changes no model."""
        return " ".join([self.entry or self.preset, *self._changed()])

    @property
    def label(self) -> str:
        """The title, or a count where several keys were changed."""
        changed = self._changed()
        return self.title if len(changed) < 2 else f"{self.entry or self.preset}, {len(changed)} keys changed"

    def is_copy(self, other: Record) -> bool:
        """Whether every figure of two records is the same; how the run is described may differ."""
        described: dict[str, Any] = {"settings": {}, "commit": None, "text": ""}
        return replace(self, **described) == replace(other, **described)

    def _changed(self) -> list[str]:
        shown = (one for one in self.changes if not one.startswith(("seed=", "checkpoint.")))
        return [*shown, *(f"finetune.{one}" for one in self.finetune)]

    @property
    def line(self) -> str:
        """Everything in one line."""
        scores, seeds = self.scores, [*next(iter(self.scores.tasks.values())).seeds]
        parts = [
            f"GLUE-5 {scores.glue5:.2f} (mean {scores.glue5_mean:.2f}, std {scores.glue5_std:.2f})",
            *(f"{one.title} {one.median:.1f}" for one in scores.tasks.values()),
            f"medians of seeds {seeds[0]}-{seeds[-1]} by {self.scorer}",
            *(f"{name} {value:.4f}" for name, value in self.held_out.items() if value is not None),
            f"{scaled(self.tokens)} tokens",
            f"FLOPs {self.flops_real:.3g} real, {self.flops_paper:.3g} by the paper's rules",
            f"{self.seconds:.1f} s of {self.minutes:g} min",
            f"commit {self.commit or 'unknown'}",
            f"{self.title}, seed {self.seed}",
        ]
        return " | ".join([*parts, *scores.notes])


def scores_of(suite: Suite) -> Scores:
    """The scores of a suite that has run all of GLUE-5 over the same seeds."""
    results = {result.task: result for result in suite.results}
    tasks: dict[str, TaskScore] = {}
    notes: list[str] = []
    for name in GLUE_5:
        result, metric = results[name], GLUE[name]
        by_seed = {str(run.seed): run.scores[metric] for run in result.seeds}
        tasks[name] = TaskScore.over(by_seed, title=result.title, metric=metric)
        stuck = [f"stuck seeds {', '.join(map(str, result.stuck))}"] if result.stuck else []
        notes += [f"{result.title}: {'; '.join(found)}" for found in [[*result.labels, *stuck]] if found]
    return glue5_of(tasks, notes=tuple(notes))


def glue5_of(tasks: dict[str, TaskScore], *, notes: tuple[str, ...] = ()) -> Scores:
    """GLUE-5 of its tasks' scores."""
    each_seed = [
        sum(values) / len(values) for values in zip(*(one.seeds.values() for one in tasks.values()), strict=True)
    ]
    summary = summarise(each_seed)
    medians = [one.median for one in tasks.values()]
    return Scores(
        glue5=sum(medians) / len(medians),
        glue5_mean=summary.mean,
        glue5_std=summary.std,
        tasks=tasks,
        notes=notes,
    )


def held_out_of(run: Run) -> dict[str, float | None]:
    """The figures of a run's last evaluation."""
    return {name: run.last(f"eval/{name}") for name in HELD_OUT}


def curve_of(run: Run) -> list[list[float | None]]:
    """The figures of every evaluation, in the order of `CURVE`."""
    return [
        [number(line.get("time_s")), number(line["step"]), *(number(line.get(f"eval/{name}")) for name in HELD_OUT)]
        for line in run.evals
    ]


def append(path: Path, record: Record) -> None:
    """Add the record to a file of JSON lines; a record of the same figures that is there already is replaced."""
    there = read(path) if path.is_file() else []
    if record in there:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"format": FORMAT, **asdict(record)}, ensure_ascii=False, allow_nan=False) + "\n"
    place = next((at for at, one in enumerate(there) if one.is_copy(record)), None)
    if place is not None:
        lines = read_bytes(path, most=MAX_BYTES).splitlines(keepends=True)
        write_atomic(path, b"".join([*lines[:place], line.encode(), *lines[place + 1 :]]))
        return
    ends = not there or path.read_bytes().endswith(b"\n")
    # An editor may have left the last line without an end.
    append_synced(path, (line if ends else f"\n{line}").encode())


def read(path: Path) -> list[Record]:
    """The records in a file of JSON lines."""
    content = read_bytes(path, most=MAX_BYTES)
    fix = "take the line out" if b'"glue5"' in content else "give a file that `electra speedrun score` wrote"
    records = []
    for place, text in enumerate(content.splitlines(), 1):
        where = f"{path}, line {place}"
        value = parse_json(text, where=where, fix=fix)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError(where, f"is no record of format {FORMAT}", fix=fix)
        records.append(read_record(Record, value, where=where, fix=fix))
    return records
