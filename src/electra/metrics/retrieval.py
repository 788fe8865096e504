"""How well vectors find the right candidate among many, by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 512  # queries whose cosines are in memory at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieved:
    """One entry a query."""

    ranks: NDArray[np.int64]
    """Of the right candidate, from 1; equal cosines count against it, and so does one that is not finite."""
    cosines: NDArray[np.float32]
    """Of the right candidate."""
    found: NDArray[np.int64]
    """Number of the candidate with the highest cosine."""
    found_cosines: NDArray[np.float32]


def unit(vectors: ArrayLike) -> NDArray[np.float32]:
    """(N, D) vectors with length 1; one without a direction stays 0."""
    rows = np.asarray(vectors, np.float32)
    with np.errstate(all="ignore"):  # a model that has diverged is no news to warn of
        norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        return np.asarray(rows / np.maximum(norms, 1e-12), np.float32)


def retrieve(
    queries: ArrayLike, candidates: ArrayLike, right: Sequence[int], *, excluded: Sequence[Sequence[int]] = ()
) -> Retrieved:
    """Where the right candidate of each query stands among all; those `excluded` for a query are left out."""
    units, others, goal = unit(queries), unit(candidates), np.asarray(right, np.int64)
    ranks, found = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
    cosines, best = np.zeros(len(units), np.float32), np.zeros(len(units), np.float32)
    for first in range(0, len(units), _BLOCK):
        part = slice(first, first + _BLOCK)
        scores = units[part] @ others.T
        every = np.arange(len(scores))
        for row, left_out in enumerate(excluded[part]):
            scores[row, list(left_out)] = -np.inf
        own = scores[every, goal[part]]
        above = (scores >= own[:, None]).sum(1)
        ranks[part] = np.where(np.isfinite(own), above, len(others))
        found[part] = scores.argmax(1)
        cosines[part], best[part] = own, scores[every, found[part]]
    return Retrieved(ranks=ranks, cosines=cosines, found=found, found_cosines=best)


def recall(ranks: ArrayLike, *, top: int) -> float:
    """Share of the queries whose right candidate is among the first `top`; 0.0 with no queries."""
    found = np.asarray(ranks)
    return float((found <= top).mean()) if found.size else 0.0


def mrr(ranks: ArrayLike) -> float:
    """Mean reciprocal rank of the right candidates; 0.0 with no queries."""
    found = np.asarray(ranks, np.float64)
    return float((1.0 / found).mean()) if found.size else 0.0
