"""Median, spread and bootstrap interval over seeds; the interval of a share of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

_NORMAL_95 = 1.959963984540054  # a normal variable is within so many standard deviations with 95 % probability
_DRAWS_AT_ONCE = 1_000_000  # values held while resampling


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


def interval(
    values: Iterable[float],
    *,
    of: Literal["median", "mean"] = "median",
    share: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """The bootstrap interval that holds the median (or mean) of resampled scores with probability `share`.

    Percentiles of `draws` resamples, each end an actual resample's value; the same for the same seed. With five runs
    or fewer, the ends of a 95 % interval of the median are close to the lowest and highest score.
    """
    scores = np.sort(np.array(list(values), np.float64))
    if not scores.size:
        raise ValueError("no score to summarise")
    if not 0.0 < share < 1.0 or draws < 1:
        raise ValueError(f"share {share} is not between 0 and 1, or draws {draws} is not positive")
    random = np.random.default_rng(seed)
    middle = np.median if of == "median" else np.mean
    block = max(1, _DRAWS_AT_ONCE // scores.size)
    found = [
        middle(scores[random.integers(scores.size, size=(min(block, draws - done), scores.size))], axis=1)
        for done in range(0, draws, block)
    ]
    tail = (1.0 - share) / 2
    resampled = np.concatenate(found)
    low = np.quantile(resampled, tail, method="inverted_cdf")
    high = np.quantile(resampled, 1.0 - tail, method="inverted_cdf")
    return float(low), float(high)


def share_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of the share that `count` of `total` rows stand for (Wilson, 1927)."""
    if not 0 <= count <= total or not total:
        raise ValueError(f"{count} of {total} rows is no share")
    share, spread = count / total, _NORMAL_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _NORMAL_95 / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)
