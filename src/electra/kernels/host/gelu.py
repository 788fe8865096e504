"""A product's bias and the GELU after it on a CPU, in one pass each way, with the bias gradient as a by-product.

Its plain twin is `model.activation`. To 2e-7 in fp32; in bf16 by the polynomials of `kernels.gelu`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.kernels.host.library import call


def biased_gelu(product: Tensor, bias: Tensor) -> Tensor:
    """The GELU of a product and its bias."""
    y: Tensor = _BiasedGelu.apply(product, bias)  # type: ignore[no-untyped-call]
    return y


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Tensor, bias: Tensor) -> Tensor:
        assert product.dtype == bias.dtype
        product, bias = product.contiguous(), bias.contiguous()
        y = torch.empty_like(product)
        call("gelu", product.dtype, product, bias, y, product.numel() // len(bias), len(bias))
        ctx.save_for_backward(product, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        product, bias = ctx.saved_tensors
        found, d_bias = torch.empty_like(product), torch.empty_like(bias)
        given = (gradient.contiguous(), product, bias, found, d_bias)
        call("gelu_back", product.dtype, *given, product.numel() // len(bias), len(bias))
        return found, d_bias
