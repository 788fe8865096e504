"""`evaluation.json`: what is behind a score, for people and for pages. docs/reference/run-folder.md has the fields."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.finetune.seeds import SeedRun
from electra.fsio import json_bytes, read_object
from electra.manifest import commit_files, read_manifest
from electra.tasks.details import Details
from electra.tasks.task import Task
from electra.tasks.task_data import TaskData

EVALUATION = "evaluation.json"
FORMAT = 1


def evaluation(task: Task, details: Details, *, scores: dict[str, float]) -> dict[str, Any]:
    """The part that every evaluation has: scores, classes, confusion matrix, worst errors."""
    return {
        "format": FORMAT,
        "unit": "percent",
        "task": task.name,
        "title": task.title,
        "kind": task.kind,
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "scores": scores,
        **asdict(details),
    }


def evaluation_of_seed(run: SeedRun, data: TaskData, *, length: int) -> dict[str, Any]:
    """The evaluation of a seed on the dev set, with its learning curve and what was cut."""
    assert run.details is not None
    dev = next(iter(data.eval_splits.values())).features
    return {
        **evaluation(data.task, run.details, scores=run.scores),
        "seed": run.seed,
        "train_rows": data.rows["train"],
        "held_out": data.held_out,
        "length": length,
        "cut": {"train": data.train.cut, "dev": dev.cut},
        "curve": {**asdict(run.curve), "metric": data.task.choice, "best_step": run.best_step, "early": run.early},
    }


def copy_evaluation(seed: Path, folder: Path) -> None:
    """Put a seed's evaluation.json into the run's folder too, with its sum; nothing where an older seed has none."""
    if not (seed / EVALUATION).is_file():
        return
    data = json_bytes(read_evaluation(seed / EVALUATION))
    place = folder / EVALUATION
    if not place.is_file() or place.read_bytes() != data:
        commit_files(folder, {EVALUATION: data})


def read_evaluation(path: Path) -> dict[str, Any]:
    """The values in an evaluation.json, verified where a manifest lists it."""
    sums = read_manifest(path.parent)
    if sums is not None and path.name in sums.files:
        sums.verify(path.name)
    value = read_object(path)
    if value.get("format") != FORMAT:
        raise DataError(path, f"is not an {EVALUATION} of format {FORMAT}", fix="fine-tune again, or update electra")
    return value
