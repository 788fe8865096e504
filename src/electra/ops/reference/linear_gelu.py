"""gelu(x · weightᵀ + bias), the GELU with the error function."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear_gelu(x: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight_FD, bias_F))
