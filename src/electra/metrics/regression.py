"""How well numbers are predicted; a correlation that is undefined (constant or non-finite numbers) is 0.0."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Linear correlation, from -1 to 1."""
    x, y = _numbers(predictions, labels)
    if not _varies(x) or not _varies(y):
        return 0.0
    return float(np.clip(np.dot(_unit(x), _unit(y)), -1.0, 1.0))


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Correlation of the ranks, ties having the mean of theirs, from -1 to 1."""
    x, y = _numbers(predictions, labels)
    if not _varies(x) or not _varies(y):
        return 0.0
    return pearson(ranks(x), ranks(y))


def mse(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared error; 0.0 with no rows, and not finite where a prediction is not."""
    x, y = _numbers(predictions, labels)
    if not x.size:
        return 0.0
    with np.errstate(all="ignore"):  # a model that has diverged is no news to warn of
        return float(np.mean((x - y) ** 2))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Rank of each value from 1, equal ones sharing the mean of their ranks."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means = (last - counts + 1 + last) / 2
    return np.asarray(means[place], np.float64)


def _numbers(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    if x.shape != y.shape or y.ndim != 1:
        raise ValueError(f"one number a row is needed, not {x.shape} and {y.shape}")
    return x, y


def _varies(values: NDArray[np.float64]) -> bool:
    return bool(values.size and np.isfinite(values).all() and values.min() != values.max())


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values minus their mean, with length 1; scaled first so that no square over- or underflows."""
    scaled = values / 2 ** (np.frexp(np.abs(values).max())[1] - 1.0)
    centred = scaled - scaled.mean()
    spread = centred / np.abs(centred).max()
    spread -= spread.mean()  # again: among nearly equal values the first mean is off by rounding
    return np.asarray(spread / np.sqrt(np.dot(spread, spread)), np.float64)
