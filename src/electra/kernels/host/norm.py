"""What ends half a layer on a CPU: a product's bias, dropout, residual and norm in one pass each way.

Its plain twin is in `model.layers`. In bf16 the sum is rounded once, where the plain one rounds after every operation.

Shapes: B texts, L length, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.kernels.host.dropout import Chance, words
from electra.kernels.host.library import call


def add_and_norm(
    x_BLD: Tensor,
    product_BLD: Tensor,
    bias_D: Tensor,
    scale_D: Tensor,
    shift_D: Tensor,
    *,
    eps: float,
    chance: Chance | None,
) -> Tensor:
    """The norm of `x` and what dropout leaves of a product and its bias; scale and shift are fp32."""
    given = (x_BLD, product_BLD, bias_D, scale_D, shift_D)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        y_BLD: Tensor = _AddAndNorm.apply(eps, chance, *given)  # type: ignore[no-untyped-call]
        return y_BLD
    return _forward(given, eps, chance, keep=False)[0]


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, eps: float, chance: Chance | None, *given: Tensor) -> Tensor:
        y_BLD, *kept = _forward(given, eps, chance, keep=True)
        *_, scale_D, _ = given
        ctx.save_for_backward(*kept, scale_D)
        ctx.chance = chance
        return y_BLD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        sum_BLD, facts_BL2, scale_D = ctx.saved_tensors
        gradient_BLD = gradient_BLD.contiguous()
        dx_BLD = torch.empty_like(sum_BLD)
        d_product_BLD = dx_BLD if ctx.chance is None else torch.empty_like(sum_BLD)
        d_bias_D = torch.empty_like(scale_D, dtype=sum_BLD.dtype)
        d_scale_D, d_shift_D = torch.empty_like(scale_D), torch.empty_like(scale_D)
        found = (dx_BLD, d_product_BLD, d_bias_D, d_scale_D, d_shift_D)
        given = (gradient_BLD, sum_BLD, facts_BL2, scale_D.contiguous())
        call("norm_back", sum_BLD.dtype, *given, *found, *words(ctx.chance), *sum_BLD.shape)
        return None, None, *found


def _forward(
    given: tuple[Tensor, ...], eps: float, chance: Chance | None, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The norm, and for the way back the sum it was taken of, with each row's mean and inverse deviation."""
    x_BLD, *weights = (tensor.contiguous() for tensor in given)
    assert x_BLD.dtype == weights[0].dtype == weights[1].dtype  # a product and its bias
    y_BLD = torch.empty_like(x_BLD)
    sum_BLD = torch.empty_like(x_BLD) if keep else None
    facts_BL2 = x_BLD.new_empty(*x_BLD.shape[:2], 2, dtype=torch.float32) if keep else None
    call("norm", x_BLD.dtype, x_BLD, *weights, y_BLD, sum_BLD, facts_BL2, *words(chance), eps, *x_BLD.shape)
    return y_BLD, sum_BLD, facts_BL2
