"""Batched products on a CPU: torch's, or in fp32 where torch has no library for them a loop in C++."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.kernels.host.library import call


def multiply(a_XIK: Tensor, b_XKJ: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.bmm` of matrices that lie end to end, transposed or not.

    Without MKL torch has all threads share one small matrix after the other: on two N1 cores a quarter of the speed.
    """
    if a_XIK.dtype != torch.float32 or torch.backends.mkl.is_available():
        return torch.bmm(a_XIK, b_XKJ) if out is None else torch.bmm(a_XIK, b_XKJ, out=out)
    count, rows, inner = a_XIK.shape
    width = b_XKJ.shape[2]
    found = a_XIK.new_empty(count, rows, width) if out is None else out
    call(
        "multiply",
        found.dtype,
        a_XIK,
        b_XKJ,
        found,
        count,
        rows,
        inner,
        width,
        *a_XIK.stride()[1:],
        *b_XKJ.stride()[1:],
    )
    return found
