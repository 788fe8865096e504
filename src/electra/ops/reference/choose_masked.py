"""The positions to predict, by the ranks of random bits at (key, position).

Shapes: B sequences, L length, M masked positions of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra import rng
from electra.batches.masking import CHOOSE, MaskedPositions, candidates, max_masked
from electra.config.schema import MaskingConfig
from electra.errors import ConfigError


def choose_masked(
    ids_BL: Tensor,
    lengths_B: Tensor,
    keys_B: Tensor,
    *,
    masking: MaskingConfig,
    special: tuple[int, ...],
    log_weights_V: Tensor | None = None,
) -> MaskedPositions:
    """With `log_weights_V`, drawn without replacement, each time in proportion to the weights of the tokens left."""
    length = ids_BL.shape[1]
    count = max(1, max_masked(length, masking.rate))
    place_L = torch.arange(length, device=ids_BL.device)
    allowed_BL = candidates(ids_BL, lengths_B, special)
    wanted_B = torch.clamp(torch.round(lengths_B.float() * masking.rate), 1, count)
    available_B = allowed_BL.sum(1)
    purpose_B1 = rng.fold(keys_B, CHOOSE)[:, None]
    bits_BL = rng.bits(purpose_B1, rng.mix(place_L.to(torch.int32)))
    # Unsigned hash, then position: no ties, so the same choice on every device.
    rank_BL = ((~allowed_BL).long() << 48) | ((bits_BL.long() & 0xFFFFFFFF) << 16) | place_L
    number_M = torch.arange(count, device=ids_BL.device)
    if log_weights_V is not None:
        rank_BL = _weighted(bits_BL, log_weights_V[ids_BL.long()], allowed_BL)
    if masking.policy == "without_replacement":
        chosen_BM = rank_BL.topk(count, dim=1, largest=False, sorted=True).indices
        used_BM = number_M < torch.minimum(wanted_B, available_B)[:, None]
    elif masking.policy == "official":
        shuffled_BL = rank_BL.argsort(dim=1)
        draw_BM = rng.bits(rng.fold(purpose_B1, 1), rng.mix(number_M.to(torch.int32)))
        pick_BM = ((draw_BM.long() & 0xFFFFFFFF) * available_B[:, None]) >> 32
        chosen_BM = shuffled_BL.gather(1, pick_BM.clamp(max=length - 1))
        used_BM = (number_M < wanted_B[:, None]) & (available_B[:, None] > 0)
    else:
        fix = "write it in ops/reference/choose_masked.py"
        raise ConfigError("masking.policy", f"{masking.policy!r} has no draw of its own", fix=fix)
    return MaskedPositions(torch.where(used_BM, chosen_BM, 0), used_BM)


def _weighted(bits_BL: Tensor, log_weights_BL: Tensor, allowed_BL: Tensor) -> Tensor:
    """(B, L) each token's place in the order of exponential waiting times; the rates are the weights."""
    # Double precision keeps the order of the 32 bits, so equal weights give the order of the bits themselves.
    share_BL = ((bits_BL.long() & 0xFFFFFFFF).double() + 0.5) / 2**32
    wait_BL = torch.log(-torch.log1p(-share_BL)) - log_weights_BL.double()
    wait_BL = wait_BL.masked_fill(~allowed_BL, torch.inf)
    return wait_BL.argsort(dim=1, stable=True).argsort(dim=1)
