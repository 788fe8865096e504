"""A step's sums added to the running totals, and its gradient norm kept, by one program.

Reference: `reference/add_totals.py`.

Shapes: S sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_kernel(  # type: ignore[no-untyped-def]
    totals,  # (count + 2,) fp64: sums, steps, skipped steps
    last_norm,  # scalar, fp32
    sums,  # (count,) fp32
    norm, skipped,  # scalars, fp32
    count, S: tl.constexpr,
):  # fmt: skip
    index_S = tl.arange(0, S)
    skip = tl.load(skipped)
    sums_S = tl.load(sums + index_S, index_S < count, 0.0)
    added_S = tl.where(tl.abs(sums_S) < float("inf"), sums_S, 0.0) * (1.0 - skip)
    added_S = tl.where(index_S == count, 1.0, tl.where(index_S == count + 1, skip, added_S))
    here_S = index_S < count + 2
    tl.store(totals + index_S, tl.load(totals + index_S, here_S, 0.0) + added_S.to(tl.float64), here_S)
    tl.store(last_norm, tl.load(norm))


def add_totals(totals: Tensor, last_norm: Tensor, sums_S: Tensor, *, norm: Tensor, skipped: Tensor) -> None:
    count = len(sums_S)
    assert len(totals) == count + 2
    with torch.cuda.device_of(totals):
        _add_kernel[(1,)](
            totals, last_norm, sums_S.contiguous(), norm, skipped, count, S=triton.next_power_of_2(count + 2),
            num_warps=1,
        )  # fmt: skip
