"""A fine-tuning or GLUE folder as the report needs it: scores, learning curves, and which rows went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from electra.errors import DataError
from electra.finetune.evaluation_file import EVALUATION, read_evaluation
from electra.finetune.results_file import read_results
from electra.finetune.seed_folder import CURVE, RESULTS, read_curve, seed_folder
from electra.finetune.task_results import Suite
from electra.records import read_record
from electra.report.reading import Points, name_of
from electra.tasks.details import ClassRow, Wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Which metric a learning curve is of."""

    metric: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What is behind a score: each label, which ones are confused, the worst errors."""

    task: str = ""
    title: str = ""
    seed: int | None = None
    curve: Measured | None = None
    rows: int = 0
    labels: list[str] = field(default_factory=list)
    classes: list[ClassRow] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """A row for each true label, a column for each predicted one; none where labels are too many."""
    wrong: int = 0
    errors: list[Wrong] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {len(self.confusion), *(len(row) for row in self.confusion)}
        if self.confusion and sizes != {len(self.labels)}:
            raise ValueError("its confusion matrix has not a row and a column for each label")

    @property
    def most_frequent(self) -> tuple[str, float] | None:
        """The label with the most rows, and their share."""
        totals = [sum(row) for row in self.confusion]
        if not sum(totals):
            return None
        return self.labels[totals.index(max(totals))], max(totals) / sum(totals)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedCurve:
    """The learning curve of one seed of a task."""

    task: str
    seed: int
    losses: Points
    evaluations: Points


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """Everything the page shows about one folder of fine-tuned models."""

    name: str
    folder: Path
    suite: Suite
    curves: list[SeedCurve]
    evaluations: list[Evaluation]


def read_tuned(folder: Path) -> Tuned:
    """The fine-tuning results in a folder."""
    suite = read_results(folder / RESULTS)
    if not suite.results:
        raise DataError(folder / RESULTS, "holds no task", fix="give a folder of electra finetune or electra glue")
    return Tuned(
        name=name_of(folder),
        folder=folder,
        suite=suite,
        curves=list(_curves(folder, suite)),
        evaluations=list(_evaluations(folder, suite)),
    )


def _curves(folder: Path, suite: Suite) -> Iterator[SeedCurve]:
    """The curves that are there: `electra glue` has a folder a task, `electra finetune` one for all its seeds."""
    for result in suite.results:
        for run in result.seeds:
            for place in (folder / result.task, folder):
                path = seed_folder(place, run.seed) / CURVE
                if path.is_file():
                    stored = read_curve(path)
                    yield SeedCurve(
                        task=result.task,
                        seed=run.seed,
                        losses=_points(stored.losses),
                        evaluations=_points(stored.evaluations),
                    )
                    break


def _points(pairs: list[list[float]]) -> Points:
    return [(step, value) for step, value in pairs if value == value]


def _evaluations(folder: Path, suite: Suite) -> Iterator[Evaluation]:
    """The folder's own evaluation, or that of the first seed of each task; none of what an older version wrote."""
    paths = [folder / EVALUATION]
    if not paths[0].is_file():
        seeds = [(result.task, run.seed) for result in suite.results for run in result.seeds[:1]]
        paths = [seed_folder(place, seed) / EVALUATION for task, seed in seeds for place in (folder / task, folder)]
    for path in dict.fromkeys(paths):
        if path.is_file():
            yield read_record(Evaluation, read_evaluation(path), where=path, fix="fine-tune again")
