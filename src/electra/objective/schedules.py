"""Numbers that change over a run, as functions of the share of it that is done."""

from __future__ import annotations

from torch import Tensor


def falling(progress: Tensor, *, start: float, end: float, share: float = 1.0) -> Tensor:
    """`start` at the run's beginning, in a straight line to `end` after a `share` of it, then `end`."""
    left = (1 - progress / share).clamp(min=0)
    return end + (start - end) * left
