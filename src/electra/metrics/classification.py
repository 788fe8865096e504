"""Metrics of classification; what is undefined (no rows, one class only) is 0.0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassScore:
    """Of one class, or type of chunk: the share of its predictions that are right, of its rows found, and their F1."""

    precision: float
    recall: float
    f1: float
    support: int
    """Rows of this class."""
    predicted: int
    """Rows predicted to be of this class."""


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows whose class is right."""
    guessed, gold = _classes(predictions, labels)
    return float(np.mean(guessed == gold)) if gold.size else 0.0


def f1(predictions: ArrayLike, labels: ArrayLike, *, positive: int = 1) -> float:
    """F1 of one class; 0.0 where it is neither predicted nor there."""
    guessed, gold = _classes(predictions, labels)
    return float(_f1(guessed == positive, gold == positive))


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Mean F1 over the classes that are predicted or there."""
    guessed, gold = _classes(predictions, labels)
    scores = [float(_f1(guessed == name, gold == name)) for name in np.union1d(guessed, gold)]
    return sum(scores) / len(scores) if scores else 0.0


def confusion(predictions: ArrayLike, labels: ArrayLike, *, classes: int) -> NDArray[np.int64]:
    """(classes, classes) counts: a row for each real class, a column for each predicted one."""
    guessed, gold = _classes(predictions, labels)
    pairs = gold.astype(np.int64) * classes + guessed.astype(np.int64)
    return np.bincount(pairs, minlength=classes * classes).astype(np.int64).reshape(classes, classes)


def class_scores(predictions: ArrayLike, labels: ArrayLike) -> list[ClassScore]:
    """The score of each class, of (rows, classes) tables of 0 and 1."""
    guessed, gold = _tables(predictions, labels)
    hits, predicted, support = (guessed & gold).sum(0), guessed.sum(0), gold.sum(0)
    return [class_score(*counts) for counts in np.stack((hits, predicted, support), 1).tolist()]


def class_score(hits: int, predicted: int, support: int) -> ClassScore:
    """The score of a class that is there and predicted so often, and both at once `hits` times."""
    return ClassScore(
        precision=hits / max(1, predicted),
        recall=hits / max(1, support),
        f1=2 * hits / max(1, predicted + support),
        support=support,
        predicted=predicted,
    )


def matthews(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Matthews correlation of any number of classes; 0.0 where predictions or labels are all of one class."""
    guessed, gold = _classes(predictions, labels)
    names = np.union1d(guessed, gold)
    guesses = [int((guessed == name).sum()) for name in names]
    golds = [int((gold == name).sum()) for name in names]
    rows, right = gold.size, int((guessed == gold).sum())
    shared = right * rows - sum(p * t for p, t in zip(guesses, golds, strict=True))
    spread = (rows**2 - sum(p * p for p in guesses)) * (rows**2 - sum(t * t for t in golds))
    return shared / math.sqrt(spread) if spread else 0.0


def majority_share(predictions: ArrayLike) -> float:
    """Share of rows that got the most predicted class: 1.0 for a model stuck on one answer."""
    guessed = np.asarray(predictions)
    if not guessed.size:
        return 0.0
    return float(np.unique(guessed, return_counts=True)[1].max() / guessed.size)


def multilabel(predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Micro and macro F1 and the share of rows with every label right, of (rows, classes) tables of 0 and 1.

    The macro mean is over all classes; one that is neither predicted nor there counts 0.0.
    """
    guessed, gold = _tables(predictions, labels)
    return {
        "micro_f1": float(_f1(guessed.ravel(), gold.ravel())),
        "macro_f1": float(_f1(guessed, gold).mean()) if gold.shape[1] else 0.0,
        "subset_accuracy": float((guessed == gold).all(axis=1).mean()) if gold.shape[0] else 0.0,
    }


def _f1(guessed: NDArray[np.bool_], gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """F1 along the first axis."""
    hits = (guessed & gold).sum(axis=0)
    claims = guessed.sum(axis=0) + gold.sum(axis=0)
    return np.asarray(2 * hits / np.maximum(claims, 1), np.float64)


def _tables(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    guessed, gold = np.asarray(predictions, bool), np.asarray(labels, bool)
    if guessed.shape != gold.shape or gold.ndim != 2:
        raise ValueError(f"two tables of one shape are needed, not {guessed.shape} and {gold.shape}")
    return guessed, gold


def _classes(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    guessed, gold = np.asarray(predictions), np.asarray(labels)
    if guessed.shape != gold.shape or gold.ndim != 1:
        raise ValueError(f"one class a row is needed, not {guessed.shape} and {gold.shape}")
    return guessed, gold
