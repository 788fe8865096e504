"""The original tokens at the masked positions, and keys to draw their replacements with."""

from __future__ import annotations

import torch
from torch import Tensor

from electra import rng
from electra.batches.masking import REPLACE, MaskedPositions


def masked_targets(ids_BL: Tensor, keys_B: Tensor, masked: MaskedPositions) -> tuple[Tensor, Tensor]:
    gold_M = ids_BL.gather(1, masked.positions_BM).flatten().long()
    number_M = torch.arange(masked.positions_BM.shape[1], dtype=torch.int32, device=keys_B.device)
    keys_BM: Tensor = rng.fold(rng.fold(keys_B, REPLACE)[:, None], number_M[None, :])
    return gold_M, keys_BM.flatten()
