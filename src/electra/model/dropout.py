"""Dropout whose pattern is a function of the sample's key and the place in the network, not of generator state."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from electra import rng


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


def keep_mask(keys_B: Tensor, count: int, rate: float) -> Tensor:
    """(B, count) booleans, true with probability 1 - rate. Each random word serves two elements."""
    half = (count + 1) // 2
    words_BH = rng.bits(keys_B[:, None], index_table(half, keys_B.device)[None, :])
    threshold = round(rate * 65536)
    low_BH = (words_BH & 0xFFFF) >= threshold
    high_BH = ((words_BH >> 16) & 0xFFFF) >= threshold
    return torch.cat((low_BH, high_BH), dim=1)[:, :count]


def dropout(x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
    """`x` with a share `rate` of each row's elements zeroed and the rest scaled up; `x` itself without keys."""
    if keys_B is None or rate == 0.0:
        return x
    keep = keep_mask(keys_B, x[0].numel(), rate).view(x.shape)
    # The scale is a separate factor: rounded to bf16 inside the mask it would shrink every activation by 0.16 %.
    return x * keep.to(x.dtype) * (1.0 / (1.0 - rate))
