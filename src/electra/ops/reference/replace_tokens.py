"""Ids with the generator's samples at the masked positions."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.batches.masking import MaskedPositions, write_at


def replace_tokens(ids_BL: Tensor, masked: MaskedPositions, sampled_M: Tensor, *, average: bool) -> Tensor:
    positions_BM, used_BM = masked
    sampled_BM = sampled_M.view(positions_BM.shape)
    if not average:
        return write_at(ids_BL, positions_BM, sampled_BM, used_BM)
    used = used_BM.long()
    zeros_BL = torch.zeros(ids_BL.shape, dtype=torch.long, device=used.device)
    total_BL = zeros_BL.scatter_add(1, positions_BM, sampled_BM * used)
    count_BL = zeros_BL.scatter_add(1, positions_BM, used)
    mean_BL = torch.div(total_BL, count_BL.clamp(min=1), rounding_mode="floor")
    return torch.where(count_BL > 0, mean_BL, ids_BL.long()).to(ids_BL.dtype)
