"""Multi-head self-attention with one projection for queries, keys and values.

Shapes: B sequences, L length, D width, N heads, H head size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from electra.ops.reference.dropout import dropout


def attention(
    x_BLD: Tensor,
    weight_3DD: Tensor,
    bias_3D: Tensor,
    *,
    heads: int,
    mask_B1LL: Tensor | None,
    rate: float,
    keys_B: Tensor | None,
) -> Tensor:
    qkv = F.linear(x_BLD, weight_3DD, bias_3D)
    q_BNLH, k_BNLH, v_BNLH = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    if keys_B is None or rate == 0.0:
        mixed_BNLH = F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH, attn_mask=mask_B1LL)
    else:
        scores_BNLL = (q_BNLH * q_BNLH.shape[-1] ** -0.5) @ k_BNLH.transpose(-1, -2)
        if mask_B1LL is not None:
            scores_BNLL = scores_BNLL + mask_B1LL
        mixed_BNLH = dropout(scores_BNLL.softmax(-1), rate, keys_B) @ v_BNLH
    return mixed_BNLH.transpose(1, 2).flatten(2)
