"""A head's scores as predictions, and the metrics of predictions. Metrics are percent, except errors such as `mse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.metrics import classification, regression, tagging
from electra.tasks.rows import Sentence
from electra.tasks.task import Task

STUCK_SPREAD = 0.01  # a regression whose predictions vary less than this share of the labels' spread is stuck


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The metrics of a network's predictions on a split."""

    scores: dict[str, float]
    """Metrics by name, in percent."""
    stuck: bool
    """Whether the network predicts the same for every row, although the labels differ."""


def predictions_from(scores: NDArray[Any], task: Task) -> list[Any]:
    """One prediction a row of a head's (N, C) scores: a class, a tuple of classes or a number."""
    if task.kind == "regress":
        return [float(value) for value in scores[:, 0].tolist()]
    if task.kind == "multilabel":
        above = scores > 0
        return [tuple(name for name, on in zip(task.labels, row, strict=True) if on) for row in above]
    return [task.labels[number] for number in scores.argmax(1)]


def evaluate_scores(scores: NDArray[Any], targets: NDArray[Any], task: Task) -> Evaluation:
    """Every metric of the task's kind for a head's (N, C) scores, whichever the task reports."""
    if task.kind == "regress":
        gold = targets.astype(np.float64) * task.scale + task.offset
        return _evaluate_regression(scores[:, 0].astype(np.float64), gold)
    if task.kind == "multilabel":
        predicted = (scores > 0).astype(np.int64)
        metrics = {name: 100 * value for name, value in classification.multilabel(predicted, targets).items()}
        return Evaluation(scores=metrics, stuck=bool((predicted == predicted[:1]).all()) and len(predicted) > 1)
    predicted = scores.argmax(1)
    metrics = {
        "accuracy": 100 * classification.accuracy(predicted, targets),
        "matthews": 100 * classification.matthews(predicted, targets),
        "macro_f1": 100 * classification.macro_f1(predicted, targets),
    }
    if len(task.labels) == 2:
        metrics["f1"] = 100 * classification.f1(predicted, targets)
    one_class = classification.majority_share(predicted) == 1.0 and len(np.unique(targets)) > 1
    return Evaluation(scores=metrics, stuck=one_class)


def evaluate_tags(predicted: list[list[str]], sentences: Sequence[Sentence], *, chunked: bool) -> Evaluation:
    """The accuracy of tags a word and, where the tags mark chunks, the F1 of exact chunks."""
    gold = [list(one.tags or ()) for one in sentences]
    metrics = {"accuracy": 100 * tagging.tag_accuracy(predicted, gold)}
    if chunked:
        micro = tagging.chunk_scores(predicted, gold).micro
        metrics |= {"f1": 100 * micro.f1, "precision": 100 * micro.precision, "recall": 100 * micro.recall}
    tags = {tag for one in predicted for tag in one}
    return Evaluation(scores=metrics, stuck=len(tags) == 1 and len({tag for one in gold for tag in one}) > 1)


def _evaluate_regression(predicted: NDArray[np.float64], gold: NDArray[np.float64]) -> Evaluation:
    metrics = {
        "spearman": 100 * regression.spearman(predicted, gold),
        "pearson": 100 * regression.pearson(predicted, gold),
        "mse": regression.mse(predicted, gold),
    }
    return Evaluation(scores=metrics, stuck=bool(predicted.std() < STUCK_SPREAD * float(gold.std())))
