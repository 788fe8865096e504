"""The folder of a finished seed, `seed-N`: its model, predictions, curve and scores, written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from electra.config.finetune import FinetuneConfig
from electra.errors import CheckpointError, DataError
from electra.finetune.evaluation_file import EVALUATION, evaluation_of_seed
from electra.finetune.model_folder import About, write_model
from electra.finetune.pretrained import Pretrained
from electra.finetune.results_file import read_results, to_json
from electra.finetune.seeds import SeedRun
from electra.finetune.task_results import Suite, TaskResult
from electra.fsio import json_lines, read_json, read_json_lines, write_atomic, write_json
from electra.manifest import FILE, commit_folder, read_manifest
from electra.records import read_record
from electra.tasks.rows import Features
from electra.tasks.spans import Answer
from electra.tasks.squad_files import write_predictions
from electra.tasks.task_data import TaskData

RESULTS = "results.json"
CURVE = "curve.json"
"""Losses and evaluations by step."""
MAX_PREDICTIONS = 1 << 30  # bytes of a split's predictions


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a seed of a task goes."""
    return folder / f"seed-{seed}"


def write_seed(
    run: SeedRun,
    base: Pretrained,
    data: TaskData,
    *,
    config: FinetuneConfig,
    result: TaskResult,
    out: Path,
    save: bool,
) -> None:
    """Put a seed into its folder; `result` is the task's, of this seed alone. `save`: with the model."""
    if out.exists():  # left by a version that wrote it in several parts
        shutil.rmtree(out)
    with commit_folder(out) as aside:
        if save:
            about = _about(run, base, data, config)
            write_model(
                aside, run.network, tokenizer=base.tokenizer, config=base.config, about=about, weights=run.weights
            )
        write_json(aside / CURVE, asdict(run.curve))
        if run.details is not None:
            write_json(aside / EVALUATION, evaluation_of_seed(run, data, length=config.length))
        for split, predictions in run.predictions.items():
            answers = [one for one in predictions.values() if isinstance(one, Answer)]
            if answers:
                odds = {one.id: one.null_odds for one in answers} if "best_exact" in data.task.metrics else None
                write_predictions(
                    aside, {one.id: one.text for one in answers}, null_odds=odds, threshold=config.null_threshold
                )
            else:
                rows = ({"id": id, "prediction": one} for id, one in predictions.items())
                write_atomic(aside / f"{split}.jsonl", json_lines(rows))
        write_json(aside / RESULTS, to_json(Suite(results=(result,))))


def read_seed(folder: Path) -> TaskResult | None:
    """The result of a finished seed, every file of its folder verified.

    None where there is no folder, and for one that was written before version 0.3.
    """
    fix = f"remove {folder} to run this seed again"
    sums = read_manifest(folder, fix=fix)
    if sums is None:
        if (folder / RESULTS).is_file():
            raise CheckpointError(folder / FILE, "is missing", fix=fix)
        return None
    if RESULTS not in sums.files:
        raise CheckpointError(folder / FILE, f"does not list {RESULTS}", fix=fix)
    sums.verify()
    (result,) = read_results(folder / RESULTS).results
    return result


@dataclass(frozen=True, slots=True)
class StoredCurve:
    """A seed's curve.json: steps, each with a score on the dev set, or with the loss since the step before."""

    evaluations: list[list[float]]
    losses: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(len(point) != 2 for point in (*self.evaluations, *self.losses)):
            raise ValueError("evaluations and losses are pairs of a step and a value")


def read_curve(path: Path) -> StoredCurve:
    """The learning curve of a seed."""
    if (sums := read_manifest(path.parent)) is not None:
        sums.verify(path.name)
    return read_record(StoredCurve, read_json(path), where=path, fix="remove the folder of this seed, run it again")


def read_predictions(path: Path) -> dict[str, Any]:
    """The predictions that a seed's folder holds of a split, by the rows' ids."""
    if (sums := read_manifest(path.parent)) is not None:
        sums.verify(path.name)
    rows = read_json_lines(path, most=MAX_PREDICTIONS)
    kinds = (str, int, float, list)
    if not all(isinstance(row.get("id"), str) and isinstance(row.get("prediction"), kinds) for row in rows):
        raise DataError(path, "holds a row that is no prediction", fix="remove the folder of this seed, run it again")
    return {row["id"]: row["prediction"] for row in rows}


def _about(run: SeedRun, base: Pretrained, data: TaskData, config: FinetuneConfig) -> About:
    task = data.task
    return About(
        task=task.name,
        title=task.title,
        kind=task.kind,
        labels=task.labels,
        offset=task.offset,
        scale=task.scale,
        pairs=task.kind == "pairs" or _has_second(data.train),
        length=config.length,
        max_query=config.max_query,
        doc_stride=config.doc_stride,
        beam=config.beam,
        n_best=config.n_best,
        max_answer=config.max_answer,
        span_head=config.span_head,
        null_threshold=config.null_threshold if "best_exact" in task.metrics else None,
        dropout=config.dropout,
        seed=run.seed,
        scores=run.scores,
        metrics=task.metrics,
        source=base.name,
        kernels=config.kernels,
        columns={} if data.columns is None else _named(asdict(data.columns)),
        pretrained_length=base.length,
        trained_length=max(base.length, *map(len, data.train.ids)),
    )


def _has_second(features: Features) -> bool:
    """Whether sequences have a second segment."""
    return any(a < len(ids) for ids, a in zip(features.ids[:1], features.a_lengths[:1], strict=True))


def _named(columns: Mapping[str, str | None]) -> dict[str, str]:
    return {role: name for role, name in columns.items() if name is not None}
