"""Several changes tried at equal minutes: each trained in turn, all scored on the seeds for choosing, in one table."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.errors import ConfigError, ElectraError, Resumable
from electra.finetune.task_results import GLUE_5
from electra.fsio import read_bytes
from electra.progress import counted, say, scaled
from electra.reproduce.workers import Worker, side_by_side
from electra.speedrun.entry import DEFAULT_ENTRY, load_entry
from electra.speedrun.markdown import markdown_table
from electra.speedrun.record import FILE, Record, append, read

RUNS, LOGS = "runs", "logs"
MAX_BYTES = 1 << 20
NOISE = (
    "Each trial is one pre-training run: differences below about a point are within its noise. `std` is over\n"
    "fine-tuning seeds alone. Train the best again with other seeds (`seed=1`) before you choose."
)
SCORED_TOGETHER = 3
"""Runs scored at a time, a process for each seed: fine-tuning alone leaves most of a GPU idle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What was tried under a name, and what came of it."""

    name: str
    changes: tuple[str, ...]
    record: Record | None = None
    failure: str = ""
    """Why there is no record."""


def read_trials(path: Path) -> list[Trial]:
    """The trials of a TOML file: a line each, `name = ["key=value", ...]`; `name = []` is the entry as it stands."""
    fix = 'a line for each trial: name = ["key=value", ...]'
    try:
        values = tomllib.loads(read_bytes(path, most=MAX_BYTES).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(str(path), f"is no TOML: {error}", fix=fix) from None
    trials = []
    for name, changes in values.items():
        if not isinstance(changes, list) or not all(isinstance(one, str) for one in changes):
            raise ConfigError(f"{path}, {name}", "is no list of settings", fix=fix)
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"{path}, {name}", "names a folder: letters, digits, - and _", fix=fix)
        trials.append(Trial(name=name, changes=tuple(changes)))
    if not trials:
        raise ConfigError(str(path), "lists no trial", fix=fix)
    return trials


def screen(
    trials: Sequence[Trial], *, data: Path, glue: Path, out: Path, minutes: float, entry: str | None = None
) -> list[Trial]:
    """Train each trial for so many minutes, one after the other, then score all on seeds 0 to 4; the best first.

    A trial that fails, such as one that diverges, has its reason in place of a record, and the others go on. The same
    call continues: what is finished is not run again.
    """
    entry = entry or DEFAULT_ENTRY
    for trial in trials:
        load_entry(entry, overrides=trial.changes)  # mistakes are found before the first is trained
    failures: dict[str, str] = {}
    for place, trial in enumerate(trials, 1):
        changes = " ".join(trial.changes) or entry
        say(f"{place}/{len(trials)} training {trial.name}, {counted(minutes, 'minute')}: {changes}")
        fixed = ["--data", str(data), "--out", str(out / RUNS / trial.name), "--minutes", str(minutes)]
        arguments = ["speedrun", "train", *fixed, "--entry", entry, *trial.changes]
        _run([Worker(name=trial.name, arguments=arguments)], out / LOGS / "train", failures)
    trained = [trial for trial in trials if trial.name not in failures]
    say(f"scoring {len(trained)} runs on seeds 0 to 4")
    for first in range(0, len(trained), SCORED_TOGETHER):
        workers = [
            Worker(name=trial.name, arguments=_scoring(out / RUNS / trial.name, glue))
            for trial in trained[first : first + SCORED_TOGETHER]
        ]
        _run(workers, out / LOGS / "score", failures)
    return sorted((_with_record(trial, out, failures) for trial in trials), key=_rank)


def table(trials: Sequence[Trial]) -> str:
    """The trials as a Markdown table, then the failures with their reasons."""
    head = ("trial", "GLUE-5", "std", "CoLA", "SST-2", "MRPC", "STS-B", "RTE", "RTD loss", "AUC", "tokens", "changes")
    rows = []
    for trial in trials:
        if (record := trial.record) is not None:
            scores = record.scores
            held_out = (record.held_out.get(name) for name in ("rtd_loss", "rtd_auc"))
            rows.append(
                (
                    *(trial.name, f"{scores.glue5:.2f}", f"{scores.glue5_std:.2f}"),
                    *(f"{scores.tasks[name].median:.1f}" for name in GLUE_5),
                    *("" if value is None else f"{value:.4f}" for value in held_out),
                    *(scaled(record.tokens), " ".join(f"`{one}`" for one in trial.changes)),
                )
            )
    failed = [
        f"- {trial.name} ({' '.join(trial.changes)}) failed: {trial.failure}" for trial in trials if trial.failure
    ]
    noted = ["", NOISE] if len(rows) > 1 else []
    return "\n".join([markdown_table(head, rows), *noted, *(["", *failed] if failed else [])])


def _run(workers: Sequence[Worker], logs: Path, failures: dict[str, str]) -> None:
    """Run the workers side by side; should one fail, each alone, so that it stops no other."""
    try:
        for _ in side_by_side(workers, logs=logs, together=len(workers)):
            pass
    except Resumable:
        raise
    except ElectraError as error:
        if len(workers) == 1:
            failures[workers[0].name] = str(error).removeprefix(f"{workers[0].name}: ")
            say(f"failed: {error}")
            return
        for worker in workers:
            _run([worker], logs, failures)


def _scoring(run: Path, glue: Path) -> list[str]:
    return ["speedrun", "score", "--run", str(run), "--glue", str(glue), "--seeds", "choice"]


def _with_record(trial: Trial, out: Path, failures: dict[str, str]) -> Trial:
    failure = failures.get(trial.name, "")
    path = out / RUNS / trial.name / FILE
    record = None if failure else [one for one in read(path) if one.purpose == "choice" and not one.finetune][-1]
    if record is not None:
        append(out / FILE, record)
    return Trial(name=trial.name, changes=trial.changes, record=record, failure=failure)


def _rank(trial: Trial) -> float:
    return 0.0 if trial.record is None else -trial.record.scores.glue5
