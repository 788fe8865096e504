"""Σ nll over the masked positions in use, by one program.

Reference: `reference/masked_sum.py`.

Shapes: B sequences, M masked positions (of a sequence after B, of the whole batch alone).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops.first_order import first_order_only

_BLOCK = 4096


@triton.jit
def _sum_kernel(  # type: ignore[no-untyped-def]
    nll,  # (count,) fp32
    used,  # (count,) bool
    out,  # scalar, fp32
    count, BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        index = first + tl.arange(0, BLOCK)
        loss = tl.load(nll + index, index < count, 0.0)
        total += loss * tl.load(used + index, index < count, 0).to(tl.float32)
    tl.store(out, tl.sum(total, 0))


def masked_sum(nll_M: Tensor, used_BM: Tensor) -> Tensor:
    with torch.cuda.device_of(nll_M):
        total: Tensor = _MaskedSum.apply(nll_M.contiguous(), used_BM.flatten().contiguous())  # type: ignore[no-untyped-call]
    return total


class _MaskedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nll_M: Tensor, used_M: Tensor) -> Tensor:
        out = torch.empty((), dtype=torch.float32, device=nll_M.device)
        _sum_kernel[(1,)](nll_M, used_M, out, len(nll_M), BLOCK=_BLOCK, num_warps=8)
        ctx.save_for_backward(used_M)
        return out

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * gradient, None
