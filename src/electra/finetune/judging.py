"""What a head's scores mean, and how good they are. Scores are percent, except errors such as `mse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.finetune.rows import Sentence
from electra.finetune.task import Task
from electra.metrics import classification, regression, tagging

STILL = 0.01  # a regression whose answers vary less than this share of the labels' spread is stuck


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How good a network's answers on a split are, in percent, and whether it says the same to everything."""

    scores: dict[str, float]
    stuck: bool


def read_scores(scores: NDArray[Any], task: Task) -> list[Any]:
    """Classes, tuples of classes or numbers from a head's (N, C) scores."""
    if task.kind == "regress":
        return [float(value) for value in scores[:, 0].tolist()]
    if task.kind == "multilabel":
        chosen = scores > 0
        return [tuple(name for name, on in zip(task.labels, row, strict=True) if on) for row in chosen]
    return [task.labels[number] for number in scores.argmax(1)]


def judge_scores(scores: NDArray[Any], targets: NDArray[Any], task: Task) -> Verdict:
    """The verdict on a head's (N, C) scores; every metric that the kind has, whatever the task reports."""
    if task.kind == "regress":
        said, gold = scores[:, 0].astype(np.float64), targets.astype(np.float64) * task.scale
        figures = {
            "spearman": 100 * regression.spearman(said, gold),
            "pearson": 100 * regression.pearson(said, gold),
            "mse": regression.mse(said, gold),
        }
        spread = float(gold.std())
        return Verdict(scores=figures, stuck=bool(said.std() < STILL * spread))
    if task.kind == "multilabel":
        chosen = (scores > 0).astype(np.int64)
        figures = {name: 100 * value for name, value in classification.multilabel(chosen, targets).items()}
        return Verdict(scores=figures, stuck=bool((chosen == chosen[:1]).all()) and len(chosen) > 1)
    answers = scores.argmax(1)
    figures = {"accuracy": 100 * classification.accuracy(answers, targets)}
    figures["matthews"] = 100 * classification.matthews(answers, targets)
    figures["macro_f1"] = 100 * classification.macro_f1(answers, targets)
    if len(task.labels) == 2:
        figures["f1"] = 100 * classification.f1(answers, targets)
    one_class = classification.majority_share(answers) == 1.0 and len(np.unique(targets)) > 1
    return Verdict(scores=figures, stuck=one_class)


def judge_tags(said: list[list[str]], sentences: Sequence[Sentence], *, chunked: bool) -> Verdict:
    """The verdict on the tags given to sentences: of words, and of exact spans where the tags mark some."""
    gold = [list(one.tags or ()) for one in sentences]
    figures = {"accuracy": 100 * tagging.tag_accuracy(said, gold)}
    if chunked:
        micro = tagging.chunk_scores(said, gold).micro
        figures |= {"f1": 100 * micro.f1, "precision": 100 * micro.precision, "recall": 100 * micro.recall}
    flat = {tag for one in said for tag in one}
    return Verdict(scores=figures, stuck=len(flat) == 1 and len({tag for one in gold for tag in one}) > 1)
