"""Scores of a head as probabilities, in float64 and without overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Probabilities along the last axis."""
    exact = scores.astype(np.float64)
    exponentials = np.exp(exact - exact.max(-1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(-1, keepdims=True)
    return probabilities


def sigmoid(scores: NDArray[Any]) -> NDArray[np.float64]:
    """A probability for each score, on its own."""
    exact = scores.astype(np.float64)
    small = np.exp(-np.abs(exact))
    probabilities: NDArray[np.float64] = np.where(exact >= 0, 1.0, small) / (1.0 + small)
    return probabilities
