"""Median and spread over seeds, and which seed is the median; the interval of a share of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_NORMAL_95 = 1.959963984540054  # a normal variable is within so many standard deviations with 95 % probability


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Scores of several runs in six numbers."""

    n: int
    median: float
    mean: float
    std: float
    """Sample standard deviation (n - 1); 0.0 for a single run."""
    min: float
    max: float


def summarise(values: Iterable[float]) -> Summary:
    """The summary of at least one score."""
    scores = np.array(list(values), np.float64)
    if not scores.size:
        raise ValueError("no score to summarise")
    with np.errstate(all="ignore"):  # a score that is not finite shows in the summary as such
        return Summary(
            n=scores.size,
            median=float(np.median(scores)),
            mean=float(scores.mean()),
            std=float(scores.std(ddof=1)) if scores.size > 1 else 0.0,
            min=float(scores.min()),
            max=float(scores.max()),
        )


def median_place(scores: Sequence[float | None]) -> int:
    """Where the median score stands, of two middle ones the lower; one that is missing or not finite is the worst."""
    known = [-math.inf if score is None or not math.isfinite(score) else score for score in scores]
    return sorted(range(len(known)), key=known.__getitem__)[(len(known) - 1) // 2]


def share_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of the share that `count` of `total` rows stand for (Wilson, 1927)."""
    if not 0 <= count <= total or not total:
        raise ValueError(f"{count} of {total} rows is no share")
    share, spread = count / total, _NORMAL_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _NORMAL_95 / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)
