"""x · weightᵀ + bias by library products; the bias gradient is summed sequence by sequence, in fp32.

Reference: `reference/linear.py`.

Shapes: B sequences, L length, T = B·L tokens, E embedding size, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from electra.ops.first_order import first_order_only
from electra.ops.triton.partial_sums import sum_rows


def linear(x_BLE: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
    with torch.cuda.device_of(x_BLE):
        out_BLD: Tensor = _Linear.apply(x_BLE.contiguous(), weight_DE, bias_D)  # type: ignore[no-untyped-call]
    return out_BLD


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BLE: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
        ctx.save_for_backward(x_BLE, weight_DE)
        out_TD = torch.addmm(bias_D, x_BLE.flatten(0, 1), weight_DE.t())
        return out_TD.view(*x_BLE.shape[:2], -1)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor, ...]:
        x_BLE, weight_DE = ctx.saved_tensors
        gradient_TD = gradient_BLD.flatten(0, 1)
        d_bias_D = sum_rows(sum_rows(gradient_BLD)[None], weight_DE.dtype)[0]
        d_x_TE = gradient_TD @ weight_DE
        return d_x_TE.view(x_BLE.shape), gradient_TD.t() @ x_BLE.flatten(0, 1), d_bias_D
