"""Numbers that move in a straight line over a run, and what that means for the masked positions of its steps."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from electra.batches.masking import max_masked
from electra.config.schema import MaskingConfig

MASKED_STAGES = 4  # of a run whose masking rate falls; each takes a second or two to capture

Number = TypeVar("Number", float, Tensor)


def straight_line(progress: Number, *, start: float, end: float, share: float = 1.0) -> Number:
    """`start` at the run's beginning, in a straight line to `end` after a `share` of it, then `end`."""
    left = 1 - progress / share
    left = left.clamp(min=0) if isinstance(left, Tensor) else max(left, 0.0)
    return end + (start - end) * left


def largest_rate_left(done: float, masking: MaskingConfig) -> float:
    """The largest masking rate from this share of the run on, looked up at the last of `MASKED_STAGES` even shares."""
    stage = int(done * MASKED_STAGES) / MASKED_STAGES
    return max(straight_line(stage, start=masking.first_rate, end=masking.rate), masking.rate)


def mean_masked(length: int, masking: MaskingConfig, *, done: float = 1.0) -> float:
    """Masked positions that a step computes for a sequence, in the mean over the first `done` share of a run."""
    weights = [min(1.0, max(0.0, done * MASKED_STAGES - stage)) for stage in range(MASKED_STAGES)]
    counts = [max(1, max_masked(length, largest_rate_left(k / MASKED_STAGES, masking))) for k in range(MASKED_STAGES)]
    return sum(weight * count for weight, count in zip(weights, counts, strict=True)) / sum(weights)
