"""The gradient's norm with what follows from it, and the running totals of a step; plain twins in `train`.

Shapes: N weights, P programs, S stats.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, MOST_PROGRAMS = 4096, 1024


@triton.jit
def _squares(gradient, lines, count, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        place = (tl.program_id(0) * steps + step) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + place, place < count, 0.0)
        total += g * g
    tl.store(lines + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _judge(lines, found, count, clip, P: tl.constexpr):  # type: ignore[no-untyped-def]
    place_P = tl.arange(0, P)
    norm = tl.sqrt(tl.sum(tl.load(lines + place_P, place_P < count, 0.0), 0))
    tl.store(found, norm)
    tl.store(found + 1, tl.where(norm < float("inf"), 0.0, 1.0))  # nor is NaN less
    tl.store(found + 2, tl.maximum(norm / clip, 1.0))


@triton.jit
def _tally(totals, kept_norm, sums, norm, skipped, count, S: tl.constexpr):  # type: ignore[no-untyped-def]
    place_S = tl.arange(0, S)
    skip = tl.load(skipped)
    sums_S = tl.load(sums + place_S, place_S < count, 0.0)
    added_S = tl.where(tl.abs(sums_S) < float("inf"), sums_S, 0.0) * (1.0 - skip)
    added_S = tl.where(place_S == count, 1.0, tl.where(place_S == count + 1, skip, added_S))
    here_S = place_S < count + 2
    tl.store(totals + place_S, tl.load(totals + place_S, here_S, 0.0) + added_S.to(tl.float64), here_S)
    tl.store(kept_norm, tl.load(norm))


def judge(gradient_N: Tensor, *, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient's norm, 1 where it is not finite, and what it must be divided by for a norm of at most `clip`."""
    count = len(gradient_N)
    steps = triton.cdiv(count, BLOCK * MOST_PROGRAMS)
    programs = triton.cdiv(count, BLOCK * steps)
    lines_P = torch.empty(programs, dtype=torch.float32, device=gradient_N.device)
    found_3 = torch.empty(3, dtype=torch.float32, device=gradient_N.device)
    with torch.cuda.device_of(gradient_N):
        _squares[(programs,)](gradient_N, lines_P, count, steps, BLOCK=BLOCK, num_warps=8)
        _judge[(1,)](lines_P, found_3, programs, float(clip), P=triton.next_power_of_2(programs), num_warps=4)
    return found_3[0], found_3[1], found_3[2]


def tally(totals: Tensor, kept_norm: Tensor, sums_S: Tensor, *, norm: Tensor, skipped: Tensor) -> None:
    """Add a step's sums to the totals, which end with counts of steps and of skipped ones; keep its norm.

    A step that was skipped adds nothing else, nor do sums that are not finite.
    """
    count = len(sums_S)
    assert len(totals) == count + 2
    with torch.cuda.device_of(totals):
        _tally[(1,)](
            totals, kept_norm, sums_S.contiguous(), norm, skipped, count, S=triton.next_power_of_2(count + 2),
            num_warps=1,
        )  # fmt: skip
