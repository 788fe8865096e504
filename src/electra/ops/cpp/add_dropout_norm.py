"""A product by the library, then bias, dropout, residual and norm in one pass forward and one backward.

In bf16 the sum is rounded once, where the reference rounds after every operation.

Shapes: B sequences, L length, D width, F inner width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.cpp.dropout import Dropout, dropout_of
from electra.ops.cpp.library import call
from electra.ops.first_order import first_order_only


def add_dropout_norm(
    x_BLD: Tensor,
    branch_BLF: Tensor,
    weight_DF: Tensor,
    bias_D: Tensor,
    gamma_D: Tensor,
    beta_D: Tensor,
    *,
    rate: float,
    keys_B: Tensor | None,
) -> Tensor:
    drop = dropout_of(keys_B, rate, x_BLD.shape[-1])
    inputs = (x_BLD, F.linear(branch_BLF, weight_DF), bias_D, gamma_D, beta_D)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        y_BLD: Tensor = _AddDropoutNorm.apply(drop, *inputs)  # type: ignore[no-untyped-call]
        return y_BLD
    return _forward(inputs, drop, save=False)[0]


class _AddDropoutNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, drop: Dropout, *inputs: Tensor) -> Tensor:
        y_BLD, *saved = _forward(inputs, drop, save=True)
        *_, gamma_D, _ = inputs
        ctx.save_for_backward(*saved, gamma_D)
        ctx.drop = drop
        return y_BLD

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        sum_BLD, stats_BL2, gamma_D = ctx.saved_tensors
        dx_BLD = torch.empty_like(sum_BLD)
        d_product_BLD = dx_BLD if ctx.drop.keys_B is None else torch.empty_like(sum_BLD)
        d_bias_D = torch.empty_like(gamma_D, dtype=sum_BLD.dtype)
        gradients = (dx_BLD, d_product_BLD, d_bias_D, torch.empty_like(gamma_D), torch.empty_like(gamma_D))
        inputs = (gradient_BLD.contiguous(), sum_BLD, stats_BL2, gamma_D.contiguous())
        call("add_dropout_norm_backward", sum_BLD.dtype, *inputs, *gradients, *ctx.drop, *sum_BLD.shape)
        return None, *gradients


def _forward(inputs: tuple[Tensor, ...], drop: Dropout, *, save: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The norm and, for the backward pass, the sum under it with each row's mean and inverse standard deviation."""
    x_BLD, *rest = (tensor.contiguous() for tensor in inputs)
    assert x_BLD.dtype == rest[0].dtype == rest[1].dtype
    assert rest[2].dtype == rest[3].dtype == torch.float32, "the C++ reads the norm's weights as fp32"
    y_BLD = torch.empty_like(x_BLD)
    sum_BLD = torch.empty_like(x_BLD) if save else None
    stats_BL2 = x_BLD.new_empty(*x_BLD.shape[:2], 2, dtype=torch.float32) if save else None
    call("add_dropout_norm", x_BLD.dtype, x_BLD, *rest, y_BLD, sum_BLD, stats_BL2, *drop, NORM_EPS, *x_BLD.shape)
    return y_BLD, sum_BLD, stats_BL2
