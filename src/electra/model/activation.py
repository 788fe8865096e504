"""The GELU with the error function, and a faster way back where torch's own goes number by number."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SLOW_BACK = platform.machine() in ("aarch64", "arm64")
"""On ARM torch's way back in fp32 takes three times as long as the passes below."""


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        density = torch.mul(x, x).mul_(-0.5).exp_().mul_(x)
        share = (x * math.sqrt(0.5)).erf_().mul_(0.5).add_(0.5)
        return share.add_(density, alpha=1 / math.sqrt(2 * math.pi)).mul_(gradient)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution's cumulative function at x."""
    plain = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.compiler.is_compiling()
    if SLOW_BACK and plain and torch.is_grad_enabled():
        y: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return y
    return F.gelu(x)
