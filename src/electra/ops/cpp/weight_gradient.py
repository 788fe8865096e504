"""Gradients of weights: by AMX in bf16 where the processor has it, otherwise by the library.

Shapes: T tokens, N and M the rows and columns of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra.ops.cpp import library
from electra.ops.cpp.library import AMX_BLOCK


def weight_gradient(gradient_TN: Tensor, x_TM: Tensor, *, out_NM: Tensor) -> None:
    """Fills `out_NM` with gradientᵀ · x."""
    (tokens, rows), columns = gradient_TN.shape, x_TM.shape[1]
    whole = tokens and not (rows % AMX_BLOCK or columns % AMX_BLOCK)
    if whole and out_NM.dtype == torch.bfloat16 and library.has_amx():
        library.call("weight_gradient", out_NM.dtype, gradient_TN, x_TM, out_NM, tokens, rows, columns)
    else:
        torch.mm(gradient_TN.t(), x_TM, out=out_NM)
