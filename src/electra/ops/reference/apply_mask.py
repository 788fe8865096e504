"""Ids as the generator or BERT reads them: [MASK], a random token or the original at the masked positions.

Shapes: B sequences, L length, M masked positions of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra import rng
from electra.batches.masking import SHOW, MaskedPositions, write_at


def apply_mask(
    ids_BL: Tensor,
    keys_B: Tensor,
    masked: MaskedPositions,
    *,
    mask_share: float,
    random_share: float,
    mask_id: int,
    vocab: int,
) -> Tensor:
    draw_BM = mask_draws(masked, keys_B)
    value_BM = torch.full_like(masked.positions_BM, mask_id)
    if random_share:
        # The part of the draw between the two shares is itself uniform and picks the random token.
        random_BM = ((draw_BM - mask_share) * (1 / random_share) * vocab).long().clamp(0, vocab - 1)
        value_BM = torch.where(draw_BM < mask_share, value_BM, random_BM)
    written_BM = masked.used_BM & (draw_BM < mask_share + random_share)
    return write_at(ids_BL, masked.positions_BM, value_BM, written_BM)


def mask_draws(masked: MaskedPositions, keys_B: Tensor) -> Tensor:
    """(B, M) a uniform number for each masked position."""
    number_M = torch.arange(masked.positions_BM.shape[1], dtype=torch.int32, device=keys_B.device)
    draws_BM: Tensor = rng.uniform(rng.bits(rng.fold(keys_B, SHOW)[:, None], rng.mix(number_M)))
    return draws_BM
