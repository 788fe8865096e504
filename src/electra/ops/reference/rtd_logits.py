"""gelu(x · weightᵀ + bias) · scoreᵀ + score_bias: the discriminator's head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from electra.ops.reference.linear_gelu import linear_gelu


def rtd_logits(x_BLD: Tensor, weight_DD: Tensor, bias_D: Tensor, score_1D: Tensor, score_bias_1: Tensor) -> Tensor:
    return F.linear(linear_gelu(x_BLD, weight_DD, bias_D), score_1D, score_bias_1).squeeze(-1).float()
