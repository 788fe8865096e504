"""Batched products: torch's, or in fp32 without MKL one in C++.

Without MKL torch has all threads share one small matrix after the other: on two N1 cores a quarter of the speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra.ops.cpp.library import call


def batched_matmul(a_XIK: Tensor, b_XKJ: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.bmm` of contiguous matrices, transposed or not."""
    if a_XIK.dtype != torch.float32 or torch.backends.mkl.is_available():
        return torch.bmm(a_XIK, b_XKJ) if out is None else torch.bmm(a_XIK, b_XKJ, out=out)
    (count, rows, inner), columns = a_XIK.shape, b_XKJ.shape[2]
    product = a_XIK.new_empty(count, rows, columns) if out is None else out
    strides = (*a_XIK.stride()[1:], *b_XKJ.stride()[1:])
    a, b = (one if one.is_contiguous() else one.mT for one in (a_XIK, b_XKJ))  # as they lie in memory
    call("batched_matmul", product.dtype, a, b, product, count, rows, inner, columns, *strides)
    return product
