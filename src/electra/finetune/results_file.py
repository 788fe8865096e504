"""`results.json`: a suite of results as a versioned file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.finetune.task_results import Suite, TaskResult
from electra.fsio import finite, json_bytes, read_object
from electra.manifest import commit_files, read_manifest
from electra.records import read_record

FORMAT = 1
_FIX = "give the results.json of a fine-tuning run"


def write_results(path: Path, suite: Suite) -> None:
    """Put the suite at `path`, with every summary and average written out for other readers, and its sum beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    commit_files(path.parent, {path.name: json_bytes(to_json(suite))})


def read_results(path: Path) -> Suite:
    """The suite in a `results.json`, its summaries and averages computed again; DataError for anything else."""
    if path.is_file() and (sums := read_manifest(path.parent, error=DataError)) and path.name in sums.files:
        sums.verify(path.name)
    value = read_object(path, fix=_FIX)
    version = value.get("format")
    if not isinstance(version, int) or version < 1:
        raise DataError(path, "is not a results.json: no format number", fix=_FIX)
    if version > FORMAT:
        raise DataError(path, f"format {version} is newer than {FORMAT}", fix="update electra")
    return Suite(results=read_record(_Stored, value, where=path, fix=_FIX).tasks)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    """The part of the file that is read."""

    tasks: tuple[TaskResult, ...]

    def __post_init__(self) -> None:
        Suite(results=self.tasks)  # refuses a task that is there twice


def to_json(suite: Suite) -> dict[str, Any]:
    """The suite as JSON values; a score that is not finite is null."""
    averages = [
        {
            "name": average.name,
            "label": average.label,
            "value": average.value,
            "tasks": list(average.titles),
            "missing": list(average.missing),
            "subsets": list(average.subsets),
        }
        for average in suite.averages
    ]
    tasks = [_task_json(result) for result in suite.results]
    value: dict[str, Any] = finite({"format": FORMAT, "unit": "percent", "tasks": tasks, "averages": averages})
    return value


def _task_json(result: TaskResult) -> dict[str, Any]:
    return {
        "task": result.task,
        "title": result.title,
        "model": result.model,
        "metrics": list(result.metrics),
        "summary": {name: asdict(result.summary(name)) for name in result.metrics},
        "subset": result.subset,
        "labels": result.labels,
        "rows": result.rows,
        "full": result.full,
        "note": result.note,
        **({"before": result.before} if result.before else {}),
        "seeds": [
            {
                "seed": run.seed,
                "stuck": run.stuck,
                "scores": run.scores,
                "seconds": run.seconds,
                "steps": run.steps,
            }
            for run in result.seeds
        ],
        "config": result.config,
    }
