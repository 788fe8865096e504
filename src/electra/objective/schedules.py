"""Numbers that change over a run, as functions of the share of it that is done."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def falling(progress: Number, *, start: float, end: float, share: float = 1.0) -> Number:
    """`start` at the run's beginning, in a straight line to `end` after a `share` of it, then `end`."""
    left = 1 - progress / share
    left = left.clamp(min=0) if isinstance(left, Tensor) else max(left, 0.0)
    return end + (start - end) * left
