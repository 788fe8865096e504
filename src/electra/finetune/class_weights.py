"""Weights of rare classes in the loss."""

from __future__ import annotations

from typing import Literal

import numpy as np

from electra.tasks.task_data import TaskData

STRONG = 10.0
"""`auto` weighs from this ratio of the most frequent class to the rarest on."""


def class_weights(data: TaskData, mode: Literal["off", "auto", "on"]) -> tuple[float, ...]:
    """The weight of each class, the mean over the training rows being 1; none where classes are not weighed.

    All classes weigh the same together: a class of half as many rows weighs twice as much a row.
    """
    targets = data.train.targets
    if mode == "off" or data.task.kind != "classify" or not isinstance(targets, np.ndarray):
        return ()
    counts = np.bincount(targets, minlength=len(data.task.labels)).astype(np.float64)
    if mode == "auto" and imbalance(counts.tolist()) < STRONG:
        return ()
    weights = counts.sum() / (np.maximum(1.0, counts) * np.count_nonzero(counts))
    return tuple(float(one) for one in weights)


def imbalance(counts: list[float]) -> float:
    """How many times as frequent the most frequent class is as the rarest that occurs."""
    there = [count for count in counts if count]
    return max(there) / min(there)
