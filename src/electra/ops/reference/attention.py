"""Multi-head self-attention with one projection for queries, keys and values, and rotary positions (arXiv 2104.09864).

Shapes: B sequences, L length, D width, N heads, H head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops.reference.dropout import dropout

ROTARY_BASE = 10_000.0


def attention(
    x_BLD: Tensor,
    weight_3DD: Tensor,
    bias_3D: Tensor,
    *,
    heads: int,
    mask_B1LL: Tensor | None,
    rate: float,
    keys_B: Tensor | None,
    rotation_2LH: Tensor | None = None,
) -> Tensor:
    qkv = F.linear(x_BLD, weight_3DD, bias_3D)
    q_BNLH, k_BNLH, v_BNLH = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    if rotation_2LH is not None:
        q_BNLH, k_BNLH = rotate(q_BNLH, rotation_2LH), rotate(k_BNLH, rotation_2LH)
    if keys_B is None or rate == 0.0:
        mixed_BNLH = F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH, attn_mask=mask_B1LL)
    else:
        scores_BNLL = (q_BNLH * q_BNLH.shape[-1] ** -0.5) @ k_BNLH.transpose(-1, -2)
        if mask_B1LL is not None:
            scores_BNLL = scores_BNLL + mask_B1LL
        mixed_BNLH = dropout(scores_BNLL.softmax(-1), rate, keys_B) @ v_BNLH
    return mixed_BNLH.transpose(1, 2).flatten(2)


def rotation(length: int, head_size: int, device: torch.device) -> Tensor:
    """(2, L, H) cosines and sines, fp32: pair j of a head turns by position · base^(-2j / H)."""
    place_L1 = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    pair_H = torch.arange(head_size, device=device) // 2
    angle_LH: Tensor = place_L1 / ROTARY_BASE ** (2 * pair_H.double() / head_size)
    return torch.stack((angle_LH.cos(), angle_LH.sin())).float()


def rotate(x_BNLH: Tensor, rotation_2LH: Tensor) -> Tensor:
    """Each pair of neighbouring numbers turned by its angle, in fp32 at least."""
    cosine_LH, sine_LH = rotation_2LH
    x = x_BNLH.to(torch.promote_types(x_BNLH.dtype, rotation_2LH.dtype))
    across = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    turned: Tensor = x * cosine_LH + across * sine_LH
    return turned.to(x_BNLH.dtype)
