"""norm(x + dropout(branch · weightᵀ + bias)), and the norm itself."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.reference.dropout import dropout


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
    return norm(x_BLD + dropout(F.linear(branch_BLF, weight_DF, bias_D), rate, keys_B), gamma_D, beta_D)


def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """LayerNorm with fp32 weights and statistics, in the precision of `x`."""
    if x.dtype == gamma.dtype or x.device.type == "cpu":  # torch's CPU kernel mixes precisions itself
        return F.layer_norm(x, gamma.shape, gamma, beta, NORM_EPS)
    return F.layer_norm(x.float(), gamma.shape, gamma, beta, NORM_EPS).to(x.dtype)
