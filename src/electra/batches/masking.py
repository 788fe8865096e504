"""Which positions are predicted and what the reader sees there: pure functions of the samples' keys, on any device.

Shapes: B sequences, L length, S prediction slots a sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra import rng
from electra.config.schema import MaskingConfig

CHOOSE, SHOW, REPLACE = 101, 102, 103  # purposes under a sample's key


class Slots(NamedTuple):
    """Prediction slots: positions in their rows, and whether each is in use (unused ones stand at position 0)."""

    positions_BS: Tensor
    used_BS: Tensor


def slot_count(length: int, rate: float) -> int:
    """Slots a sequence of full length may need (19 at 128 and 15 %), as the official code counts them."""
    return min(length, int((rate + 0.005) * length))


def candidates(ids_BL: Tensor, lengths_B: Tensor, special: tuple[int, ...]) -> Tensor:
    """(B, L) the tokens that may be chosen: neither padding nor special."""
    allowed_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device) < lengths_B[:, None]
    for token in special:
        allowed_BL = allowed_BL & (ids_BL != token)
    return allowed_BL


def choose(
    ids_BL: Tensor,
    lengths_B: Tensor,
    keys_B: Tensor,
    *,
    masking: MaskingConfig,
    special: tuple[int, ...],
    log_weights_V: Tensor | None = None,
) -> Slots:
    """The positions to predict: the rounded share of each row's tokens, never a special token or padding.

    With `log_weights_V` they are drawn without replacement, each time in proportion to the weights of the tokens left.
    """
    length = ids_BL.shape[1]
    slots = max(1, slot_count(length, masking.rate))
    place_L = torch.arange(length, device=ids_BL.device)
    allowed_BL = candidates(ids_BL, lengths_B, special)
    wanted_B = torch.clamp(torch.round(lengths_B.float() * masking.rate), 1, slots)
    available_B = allowed_BL.sum(1)
    purpose_B1 = rng.fold(keys_B, CHOOSE)[:, None]
    words_BL = rng.bits(purpose_B1, rng.mix(place_L.to(torch.int32)))
    # Unsigned hash, then position: no ties, so the same choice on every device.
    rank_BL = ((~allowed_BL).long() << 48) | ((words_BL.long() & 0xFFFFFFFF) << 16) | place_L
    number_S = torch.arange(slots, device=ids_BL.device)
    if log_weights_V is not None:
        rank_BL = _weighted(words_BL, log_weights_V[ids_BL.long()], allowed_BL)
    if masking.policy == "without_replacement":
        chosen_BS = rank_BL.topk(slots, dim=1, largest=False, sorted=True).indices
        used_BS = number_S < torch.minimum(wanted_B, available_B)[:, None]
    else:
        shuffled_BL = rank_BL.argsort(dim=1)
        draw_BS = rng.bits(rng.fold(purpose_B1, 1), rng.mix(number_S.to(torch.int32)))
        pick_BS = ((draw_BS.long() & 0xFFFFFFFF) * available_B[:, None]) >> 32
        chosen_BS = shuffled_BL.gather(1, pick_BS.clamp(max=length - 1))
        used_BS = (number_S < wanted_B[:, None]) & (available_B[:, None] > 0)
    return Slots(torch.where(used_BS, chosen_BS, 0), used_BS)


def _weighted(words_BL: Tensor, log_weights_BL: Tensor, allowed_BL: Tensor) -> Tensor:
    """(B, L) each token's place in the order of exponential waiting times; the rates are the weights."""
    # Double precision keeps the order of the 32-bit words, so equal weights give the order of the words themselves.
    share_BL = ((words_BL.long() & 0xFFFFFFFF).double() + 0.5) / 2**32
    wait_BL = torch.log(-torch.log1p(-share_BL)) - log_weights_BL.double()
    wait_BL = wait_BL.masked_fill(~allowed_BL, torch.inf)
    return wait_BL.argsort(dim=1, stable=True).argsort(dim=1)


def show_draws(slots: Slots, keys_B: Tensor) -> Tensor:
    """A uniform number for each slot that decides what the reader sees there."""
    number_S = torch.arange(slots.positions_BS.shape[1], dtype=torch.int32, device=keys_B.device)
    draws_BS: Tensor = rng.uniform(rng.bits(rng.fold(keys_B, SHOW)[:, None], rng.mix(number_S)))
    return draws_BS


def put(ids_BL: Tensor, positions_BS: Tensor, values_BS: Tensor, where_BS: Tensor) -> Tensor:
    """`ids` with `values` written at the positions where `where` holds; of several at one position, the last."""
    # Everything not written goes to a spare column, so no write can undo another, in whatever order they come.
    length = ids_BL.shape[1]
    wide = torch.cat((ids_BL, ids_BL[:, :1]), dim=1)
    same_BSS = (positions_BS[:, :, None] == positions_BS[:, None]) & where_BS[:, None]
    where_BS = where_BS & ~same_BSS.triu(1).any(2)
    target_BS = torch.where(where_BS, positions_BS, length)
    return wide.scatter(1, target_BS, values_BS.to(ids_BL.dtype))[:, :length]
