"""x · weightᵀ + bias."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x_BLE: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
    return F.linear(x_BLE, weight_DE, bias_D)
