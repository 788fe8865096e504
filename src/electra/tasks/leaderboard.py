"""Predictions as the files that the GLUE leaderboard takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from electra.errors import DataError
from electra.fsio import write_atomic
from electra.tasks.task import Task

_PARTS = {("mnli", "test"): "MNLI-m", ("mnli", "test_mismatched"): "MNLI-mm"}


def submission_file(task: Task, split: str = "test") -> str:
    """The file name the leaderboard wants: `CoLA.tsv`, `MNLI-mm.tsv`."""
    if split not in task.tests:
        raise ValueError(f"{task.title} has no test split '{split}'")
    return f"{_PARTS.get((task.name, split), task.title)}.tsv"


def write_submission(
    folder: Path, *, task: Task, split: str = "test", ids: Sequence[str], predictions: Sequence[str | float]
) -> Path:
    """Write one task's file and return its path; predictions are class names, or scores on the task's own scale."""
    path = folder / submission_file(task, split)
    if len(ids) != len(predictions):
        raise ValueError(f"{len(ids)} ids, {len(predictions)} predictions")
    if len(set(ids)) != len(ids):
        raise DataError(path, "two rows of the test file have the same index", fix="fetch the test file again")
    lines = [
        f"{index}\t{_formatted(prediction, task=task)}\n" for index, prediction in zip(ids, predictions, strict=True)
    ]
    write_atomic(path, "".join(["index\tprediction\n", *lines]).encode())
    return path


def _formatted(prediction: str | float, *, task: Task) -> str:
    if task.kind == "regress":
        value = float(prediction)
        if math.isnan(value):
            raise ValueError(f"a prediction for {task.title} is not a number")
        return f"{min(max(value, 0.0), task.scale):.3f}"
    if prediction not in task.labels:
        raise ValueError(f"'{prediction}' is not a label of {task.title}; it has {', '.join(task.labels)}")
    return str(prediction)
