"""norm(gelu(x · weightᵀ + bias)): what the MLM head compares with the token table."""

from __future__ import annotations

from torch import Tensor

from electra.ops.reference.add_dropout_norm import norm
from electra.ops.reference.linear_gelu import linear_gelu


def linear_gelu_norm(x_MD: Tensor, weight_ED: Tensor, bias_E: Tensor, gamma_E: Tensor, beta_E: Tensor) -> Tensor:
    return norm(linear_gelu(x_MD, weight_ED, bias_E), gamma_E, beta_E)
