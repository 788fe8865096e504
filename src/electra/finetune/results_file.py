"""`results.json`: a suite of results as a versioned file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.fsio import read_json, write_json
from electra.metrics.spread import Summary

FORMAT = 1


def write_results(path: Path, suite: Suite) -> None:
    """Put the suite at `path`, with every summary and average written out for other readers."""
    write_json(path, to_json(suite))


def read_results(path: Path) -> Suite:
    """The suite in a `results.json`; DataError for anything else."""
    try:
        return from_json(read_json(path))
    except OSError as error:
        raise DataError(path, error.strerror or "cannot be read", fix="give a results.json") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(path, "is not JSON", fix="give a results.json") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise DataError(path, f"is not a results.json: {reason}", fix="run electra evaluate again") from error


def to_json(suite: Suite) -> dict[str, Any]:
    """The suite as JSON values; a score that is not finite is null."""
    return {
        "format": FORMAT,
        "unit": "percent",
        "tasks": [_task_json(result) for result in suite.results],
        "averages": [
            {
                "name": average.name,
                "label": average.label,
                "value": _number(average.value),
                "tasks": list(average.titles),
                "missing": list(average.missing),
                "subsets": list(average.subsets),
            }
            for average in suite.averages
        ],
    }


def from_json(value: Any) -> Suite:
    """The suite that `to_json` wrote; summaries and averages are computed again, not read."""
    if not isinstance(value, dict) or not isinstance(value.get("format"), int) or value["format"] < 1:
        raise ValueError("no format number")
    if value["format"] > FORMAT:
        raise ValueError(f"format {value['format']} is newer than {FORMAT}, the last this version knows")
    return Suite(results=tuple(_task_from(entry) for entry in value["tasks"]))


def _task_json(result: TaskResult) -> dict[str, Any]:
    return {
        "task": result.task,
        "title": result.title,
        "model": result.model,
        "metrics": list(result.metrics),
        "summary": {name: _summary_json(result.summary(name)) for name in result.metrics},
        "subset": result.subset,
        "labels": result.labels,
        "rows": result.rows,
        "full": result.full,
        "note": result.note,
        "seeds": [
            {
                "seed": run.seed,
                "stuck": run.stuck,
                "scores": {name: _number(score) for name, score in run.scores.items()},
                "seconds": run.seconds,
                "steps": run.steps,
            }
            for run in result.seeds
        ],
        "config": result.config,
    }


def _summary_json(summary: Summary) -> dict[str, Any]:
    names = ("n", "median", "mean", "std", "min", "max")
    return {name: _number(getattr(summary, name)) for name in names}


def _task_from(entry: Mapping[str, Any]) -> TaskResult:
    return TaskResult(
        task=_text(entry["task"]),
        title=_text(entry["title"]),
        model=_text(entry["model"]),
        metrics=tuple(_text(name) for name in entry["metrics"]),
        seeds=tuple(
            SeedScore(
                seed=int(run["seed"]),
                scores={name: math.nan if score is None else float(score) for name, score in run["scores"].items()},
                stuck=bool(run["stuck"]),
                seconds=float(run["seconds"]),
                steps=int(run["steps"]),
            )
            for run in entry["seeds"]
        ),
        rows={split: int(rows) for split, rows in entry["rows"].items()},
        full={split: int(rows) for split, rows in entry["full"].items()},
        note=_text(entry["note"]),
        config=dict(entry["config"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
