"""‖gradient‖₂, whether it is finite, and the divisor that clips it: a kernel of partial sums and one of one program.

Reference: `reference/grad_norm.py`.

Shapes: N parameters, P programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import GradNorm

_BLOCK, MAX_PROGRAMS = 4096, 1024


@triton.jit
def _squares_kernel(  # type: ignore[no-untyped-def]
    gradient,  # (count,) fp32
    sums,  # (P,) fp32
    count, steps, BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        index = (tl.program_id(0) * steps + step) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + index, index < count, 0.0)
        total += g * g
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _norm_kernel(  # type: ignore[no-untyped-def]
    sums,  # (count,) fp32
    found,  # (3,) fp32: norm, skipped, divisor
    count, clip, P: tl.constexpr,
):  # fmt: skip
    index_P = tl.arange(0, P)
    norm = tl.sqrt(tl.sum(tl.load(sums + index_P, index_P < count, 0.0), 0))
    tl.store(found, norm)
    tl.store(found + 1, tl.where(norm < float("inf"), 0.0, 1.0))  # nor is NaN less
    tl.store(found + 2, tl.maximum(norm / clip, 1.0))


def grad_norm(gradient_N: Tensor, *, clip: float, max_programs: int = MAX_PROGRAMS) -> GradNorm:
    """`max_programs` bounds the number of partial sums."""
    count = len(gradient_N)
    steps = triton.cdiv(count, _BLOCK * max_programs)
    programs = triton.cdiv(count, _BLOCK * steps)
    sums_P = torch.empty(programs, dtype=torch.float32, device=gradient_N.device)
    found_3 = torch.empty(3, dtype=torch.float32, device=gradient_N.device)
    with torch.cuda.device_of(gradient_N):
        _squares_kernel[(programs,)](gradient_N, sums_P, count, steps, BLOCK=_BLOCK, num_warps=8)
        _norm_kernel[(1,)](sums_P, found_3, programs, float(clip), P=triton.next_power_of_2(programs), num_warps=4)
    return GradNorm(*found_3.unbind())
