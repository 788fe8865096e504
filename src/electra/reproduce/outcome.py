"""What an experiment found: a row for every scored checkpoint, with the paper's score and the cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from electra.errors import DataError
from electra.finetune.task_results import Suite, TaskResult
from electra.fsio import read_object, write_json
from electra.metrics.spread import summarise
from electra.records import read_record

FORMAT = 1
RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The mean of tasks' medians, and how far the seeds lie apart: each seed's own mean over the tasks."""

    label: str
    value: float
    seeds: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """One task's median over seeds, with everything that must stand next to it."""

    title: str
    metric: str
    median: float
    low: float
    high: float
    labels: tuple[str, ...] = ()
    stuck: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Parameters, tokens and FLOPs of a row: what is known without a clock."""

    parameters: int
    kept: int
    """Of them, what is kept for fine-tuning."""
    steps: int
    tokens: int
    """Processed, padding included."""
    text_tokens: int
    """Of them, those that are text."""
    paper_flops: float
    real_flops: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measured times: the only part of a row that differs from run to run."""

    device_seconds: float
    tokens_per_s: float
    finetune_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One configuration after one share of its run."""

    variant: str
    title: str
    share: float
    paper: float | None
    score: Score
    tasks: tuple[TaskScore, ...]
    cost: Cost
    measured: Measured
    held_out: dict[str, float] = field(default_factory=dict)
    """Losses and accuracies on held-out text at the last evaluation before it."""
    overrides: tuple[str, ...] = ()
    x: float | None = None
    line: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """An experiment so far."""

    experiment: str
    scale: str
    budget: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    """Configurations that were asked for and are not finished."""
    diverged: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Configurations that do not fit into the scale's time."""
    overrides: tuple[str, ...] = ()
    """Settings given on the command line, for all configurations."""
    changes: tuple[str, ...] = ()
    """What differs from the scale as it is: `--tokens 300000000`."""
    device: str = ""


def score_of(suite: Suite) -> Score:
    """The paper's average of a suite over the tasks at hand, or the one task's median."""
    results = suite.results
    seeds = [run.seed for run in results[0].seeds]
    by_seed = [
        sum(next(run.scores[one.metrics[0]] for run in one.seeds if run.seed == seed) for one in results) / len(results)
        for seed in seeds
    ]
    spread = summarise(by_seed)
    averages = suite.averages
    if len(results) == 1 or not averages:
        label, value = f"{results[0].title}, {results[0].metrics[0]}", results[0].summary().median
    else:
        label, value = averages[0].label, averages[0].value
    return Score(label=label, value=value, seeds=tuple(by_seed), low=spread.min, high=spread.max)


def task_score(result: TaskResult) -> TaskScore:
    """A task's line."""
    summary = result.summary()
    return TaskScore(
        title=result.title,
        metric=result.metrics[0],
        median=summary.median,
        low=summary.min,
        high=summary.max,
        labels=tuple(result.labels),
        stuck=tuple(result.stuck),
    )


def write_outcome(out: Path, outcome: Outcome) -> None:
    """Put `results.json` into the folder."""
    write_json(out / RESULTS, {"format": FORMAT, **asdict(outcome)})


def read_outcome(out: Path) -> Outcome:
    """The experiment that `results.json` in a folder tells of."""
    path, fix = out / RESULTS, "give a folder of electra reproduce, or run it again"
    value = read_object(path, fix=fix)
    version = value.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise DataError(path, f"its format is {str(version)[:20]}; this version knows {FORMAT}", fix="update electra")
    return read_record(Outcome, value, where=path, fix=fix)
