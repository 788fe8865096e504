"""Masked positions: what they are, how many there may be, which tokens are candidates, and writing at them.

`ops.choose_masked` draws them and `ops.apply_mask` writes [MASK] there.

Shapes: B sequences, L length, M masked positions of a sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHOOSE, SHOW, REPLACE = 101, 102, 103  # purposes under a sample's key


class MaskedPositions(NamedTuple):
    """Positions to predict in each row, and whether each is in use (unused ones are at position 0)."""

    positions_BM: Tensor
    used_BM: Tensor

    def first(self, count: int) -> MaskedPositions:
        """The first `count` of each row."""
        return MaskedPositions(*(x[:, :count].contiguous() for x in self))


def max_masked(length: int, rate: float) -> int:
    """Masked positions a sequence of full length may need (19 at 128 and 15 %), as the official code counts them."""
    return min(length, int((rate + 0.005) * length))


def candidates(ids_BL: Tensor, lengths_B: Tensor, special: tuple[int, ...]) -> Tensor:
    """(B, L) the tokens that may be chosen: neither padding nor special."""
    allowed_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device) < lengths_B[:, None]
    for token in special:
        allowed_BL = allowed_BL & (ids_BL != token)
    return allowed_BL


def write_at(ids_BL: Tensor, positions_BM: Tensor, values_BM: Tensor, where_BM: Tensor) -> Tensor:
    """`ids` with `values` written at the positions where `where` holds; of several at one position, the last."""
    # Everything not written goes to a spare column, so no write can undo another, in whatever order they come.
    length = ids_BL.shape[1]
    padded = torch.cat((ids_BL, ids_BL[:, :1]), dim=1)
    same_BMM = (positions_BM[:, :, None] == positions_BM[:, None]) & where_BM[:, None]
    where_BM = where_BM & ~same_BMM.triu(1).any(2)
    target_BM = torch.where(where_BM, positions_BM, length)
    return padded.scatter(1, target_BM, values_BM.to(ids_BL.dtype))[:, :length]
