"""Dropout whose pattern is a function of the sample's key and the place in the network, not of generator state."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from electra import rng
from electra.kernels.host import library
from electra.kernels.host.dropout import Chance, drop


def index_table(count: int, device: torch.device) -> Tensor:
    """Mixed indices 0..count-1; kept outside compiled code, since they are half of the hashing of every draw."""
    return _make_table(count, device) if torch.compiler.is_compiling() else _kept_table(count, device)


def _make_table(count: int, device: torch.device) -> Tensor:
    table: Tensor = rng.mix(torch.arange(count, dtype=torch.int32, device=device))
    return table


_kept_table = cache(_make_table)


def site_keys(keys_B: Tensor | None, site: int) -> Tensor | None:
    """The keys of one place in the network, or None where nothing is dropped."""
    return None if keys_B is None else rng.fold(keys_B, site)


def keep_mask(keys_B: Tensor, rows: int, width: int, rate: float) -> Tensor:
    """(B, rows, width) booleans, true with probability 1 - rate.

    Each row has a word of its own, from which the words of its elements follow; each of these serves two elements,
    side by side. Kernels compute the same bits.
    """
    pairs = (width + 1) // 2
    row_BR = rng.bits(keys_B[:, None], index_table(rows, keys_B.device)[None, :])
    words_BRP = rng.bits(row_BR[..., None], index_table(pairs, keys_B.device))
    threshold = rng.drop_threshold(rate)
    low_BRP = (words_BRP & 0xFFFF) >= threshold
    high_BRP = ((words_BRP >> 16) & 0xFFFF) >= threshold
    return torch.stack((low_BRP, high_BRP), dim=3).flatten(2)[..., :width]


def chance(keys_B: Tensor | None, rate: float, width: int) -> Chance | None:
    """What a loop in C++ needs to drop as `keep_mask` does, for rows of a width; None where nothing is dropped."""
    if keys_B is None or rate == 0.0:
        return None
    indices_P = index_table((width + 1) // 2, keys_B.device)
    return Chance(keys_B.contiguous(), indices_P, rng.drop_threshold(rate), 1.0 / (1.0 - rate))


def dropout(x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
    """`x` with a share `rate` of each sample's elements zeroed and the rest scaled up; `x` itself without keys."""
    if keys_B is None or rate == 0.0:
        return x
    if library.usable(x) and (how := chance(keys_B, rate, x.shape[-1])):
        return drop(x, how)
    keep = keep_mask(keys_B, x[0].numel() // x.shape[-1], x.shape[-1], rate).view(x.shape)
    # The scale is a separate factor: rounded to bf16 inside the mask it would shrink every activation by 0.16 %.
    return x * keep.to(x.dtype) * (1.0 / (1.0 - rate))
