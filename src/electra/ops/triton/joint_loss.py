"""rtd_weight · rtd_sum / tokens + mlm_weight · mlm_sum / masked positions, in one kernel of one program.

Reference: `reference/joint_loss.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops.first_order import first_order_only


@triton.jit
def _joint_kernel(  # type: ignore[no-untyped-def]
    rtd_sum, mlm_sum,  # scalars, fp32
    counts,  # (2 or more,) fp32: masked positions, tokens
    factors,  # (2,) fp32: of rtd_sum and of mlm_sum
    loss,  # scalar, fp32
    rtd_weight, mlm_weight,
):  # fmt: skip
    rtd_factor = rtd_weight / tl.maximum(tl.load(counts + 1), 1.0)
    mlm_factor = mlm_weight / tl.maximum(tl.load(counts), 1.0)
    tl.store(factors, rtd_factor)
    tl.store(factors + 1, mlm_factor)
    tl.store(loss, rtd_factor * tl.load(rtd_sum) + mlm_factor * tl.load(mlm_sum))


def joint_loss(rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, *, rtd_weight: float, mlm_weight: float) -> Tensor:
    with torch.cuda.device_of(rtd_sum):
        loss: Tensor = _JointLoss.apply(  # type: ignore[no-untyped-call]
            rtd_sum, mlm_sum, counts.contiguous(), float(rtd_weight), float(mlm_weight)
        )
    return loss


class _JointLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, rtd_weight: float, mlm_weight: float
    ) -> Tensor:
        loss = torch.empty_like(rtd_sum)
        factors_2 = torch.empty(2, dtype=torch.float32, device=rtd_sum.device)
        _joint_kernel[(1,)](rtd_sum, mlm_sum, counts, factors_2, loss, rtd_weight, mlm_weight, num_warps=1)
        ctx.save_for_backward(factors_2)
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rtd, mlm = (ctx.saved_tensors[0] * gradient).unbind()
        return rtd, mlm, None, None, None
