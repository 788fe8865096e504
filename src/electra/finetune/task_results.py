"""Scores of tasks over seeds, and the averages that the paper prints.

Scores are percent numbers: 100 x an accuracy, an F1 or a correlation. Only errors such as `mse` are as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from electra.metrics.spread import Summary, summarise

GLUE = {
    "cola": "matthews",
    "sst2": "accuracy",
    "mrpc": "accuracy",
    "stsb": "spearman",
    "qqp": "accuracy",
    "mnli": "accuracy",
    "qnli": "accuracy",
    "rte": "accuracy",
}
"""The tasks of the paper's average, each with the score that goes into it; WNLI and AX stay out."""
GLUE_5 = ("cola", "sst2", "mrpc", "stsb", "rte")
"""Tasks whose official files are whole wherever GLUE is at hand."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedScore:
    """The scores of one run, and whether it predicted one thing for every row."""

    seed: int
    scores: dict[str, float]
    stuck: bool = False
    seconds: float = 0.0
    steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """A task's runs from one model; at least one run, each with every metric."""

    task: str
    title: str
    metrics: tuple[str, ...]
    """The first is the reported one."""
    seeds: tuple[SeedScore, ...]
    rows: dict[str, int] = field(default_factory=dict)
    """Rows used of each split, before any are doubled or windowed."""
    full: dict[str, int] = field(default_factory=dict)
    """Rows of the whole split as published (or as in its file, where only some are used), where known."""
    note: str = ""
    """Anything else that must be printed with the scores."""
    before: dict[str, float] = field(default_factory=dict)
    """The scores of the model as it was before fine-tuning, where it gives predictions already: of pairs."""
    model: str = ""
    """Name of the model's folder."""
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.seeds or not self.metrics:
            raise ValueError(f"{self.task}: a result needs a metric and a run")
        for run in self.seeds:
            if missing := [name for name in self.metrics if name not in run.scores]:
                raise ValueError(f"{self.task}: seed {run.seed} has no {missing[0]}")
        if len({run.seed for run in self.seeds}) < len(self.seeds):
            raise ValueError(f"{self.task}: a seed is there twice")

    @property
    def subset(self) -> bool:
        """Whether any split is not the whole set."""
        return any(rows != self.full.get(split, rows) for split, rows in self.rows.items())

    @property
    def labels(self) -> list[str]:
        """What must be printed wherever the scores are: `subset of train: 9,999 of 104,743 rows`."""
        found = [
            f"subset of {split}: {rows:,} of {whole:,} rows"
            if rows < whole
            else f"not the published {split}: {rows:,} rows, not {whole:,}"
            for split, rows in self.rows.items()
            if rows != (whole := self.full.get(split, rows))
        ]
        named = ", ".join(f"{name} {value:.1f}" for name, value in self.before.items())
        return [*found, *([f"before fine-tuning: {named}"] if named else []), *([self.note] if self.note else [])]

    @property
    def stuck(self) -> list[int]:
        """Seeds of the runs that predicted one thing for every row; they count like any other."""
        return [run.seed for run in self.seeds if run.stuck]

    def scores(self, metric: str | None = None) -> list[float]:
        """A metric of every run, in the order of the runs; by default the reported one."""
        return [run.scores[metric or self.metrics[0]] for run in self.seeds]

    def summary(self, metric: str | None = None) -> Summary:
        """Median, mean and spread over all runs, stuck ones included."""
        return summarise(self.scores(metric))

    def with_run(self, run: SeedScore) -> TaskResult:
        """The result with one more run, in the order of seeds; a run of the same seed is replaced."""
        others = [other for other in self.seeds if other.seed != run.seed]
        return replace(self, seeds=tuple(sorted([*others, run], key=lambda one: one.seed)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """The mean of several tasks' medians."""

    name: str
    value: float
    titles: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Names of tasks that belong to the average and have no result."""
    subsets: tuple[str, ...] = ()
    """Titles of tasks in the average whose rows are a subset."""

    @property
    def label(self) -> str:
        """`GLUE average`, or for a part of it `average over CoLA, RTE (2 of the 8 GLUE tasks)`; subsets are named."""
        named = f"{self.name} ({', '.join(self.titles)})"
        if self.missing:
            count = f"{len(self.titles)} of the {len(self.titles) + len(self.missing)} {self.name} tasks"
            named = f"average over {', '.join(self.titles)} ({count})"
        elif self.name == "GLUE":
            named = f"GLUE average ({len(self.titles)} tasks)"
        return named + (f", on subsets of {', '.join(self.subsets)}" if self.subsets else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """The results of several tasks from one model, each task once."""

    results: tuple[TaskResult, ...] = ()

    def __post_init__(self) -> None:
        if len({result.task for result in self.results}) < len(self.results):
            raise ValueError("a task is there twice")

    def with_result(self, result: TaskResult) -> Suite:
        """The suite with one more task at the end; a result of the same task is replaced in its place."""
        if all(other.task != result.task for other in self.results):
            return Suite(results=(*self.results, result))
        return Suite(results=tuple(result if other.task == result.task else other for other in self.results))

    @property
    def averages(self) -> list[Average]:
        """The paper's GLUE average over as many of its tasks as are there (two at least), and GLUE-5 where whole."""
        there = {result.task: result for result in self.results if GLUE.get(result.task) in result.metrics}
        glue = [there[task] for task in GLUE if task in there]
        found = [_average("GLUE", glue, missing=tuple(task for task in GLUE if task not in there))] if glue[1:] else []
        if all(task in there for task in GLUE_5):
            found.append(_average("GLUE-5", [there[task] for task in GLUE_5]))
        return found


def _average(name: str, results: list[TaskResult], *, missing: tuple[str, ...] = ()) -> Average:
    medians = [result.summary(GLUE[result.task]).median for result in results]
    return Average(
        name=name,
        value=sum(medians) / len(medians),
        titles=tuple(result.title for result in results),
        missing=missing,
        subsets=tuple(result.title for result in results if result.subset),
    )
