"""Dropout whose pattern is a function of the sample's key, the row and the column, not of generator state.

Shapes: B sequences, R rows of a sequence, C columns.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from electra import rng


def dropout(x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
    if keys_B is None or rate == 0.0:
        return x
    keep = keep_mask(keys_B, x[0].numel() // x.shape[-1], x.shape[-1], rate).view(x.shape)
    # The scale is a separate factor: rounded to bf16 inside the mask it would shrink every activation by 0.16 %.
    return x * keep.to(x.dtype) * (1.0 / (1.0 - rate))


def keep_mask(keys_B: Tensor, rows: int, columns: int, rate: float) -> Tensor:
    """(B, R, C) booleans, true with probability 1 - rate.

    Each row has 32 random bits of its own, from which those of its elements follow: 16 each, two elements side by side
    sharing 32. Every backend computes the same bits.
    """
    pairs = (columns + 1) // 2
    row_BR = rng.bits(keys_B[:, None], index_table(rows, keys_B.device)[None, :])
    bits_BRP = rng.bits(row_BR[..., None], index_table(pairs, keys_B.device))
    threshold = rng.drop_threshold(rate)
    low_BRP = (bits_BRP & 0xFFFF) >= threshold
    high_BRP = ((bits_BRP >> 16) & 0xFFFF) >= threshold
    return torch.stack((low_BRP, high_BRP), dim=3).flatten(2)[..., :columns]


def index_table(count: int, device: torch.device) -> Tensor:
    """Mixed indices 0..count-1, computed once: they are half of the hashing of every draw."""
    # The compiler looks past a cache, and warns of it.
    return _make_table(count, device) if torch.compiler.is_compiling() else _cached_table(count, device)


def _make_table(count: int, device: torch.device) -> Tensor:
    table: Tensor = rng.mix(torch.arange(count, dtype=torch.int32, device=device))
    return table


_cached_table = cache(_make_table)
