"""Dropout inside kernels: the random words of `rng`, bit for bit those of the plain path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng

GOLDEN: Any = tl.constexpr(0x9E3779B9)
MULTIPLIER_1: Any = tl.constexpr(0x7FEB352D)
MULTIPLIER_2: Any = tl.constexpr(0x846CA68B)


@triton.jit
def mix(x):  # type: ignore[no-untyped-def]
    """`rng.mix` of uint32 words."""
    x = x ^ (x >> 16)
    x = x * MULTIPLIER_1
    x = x ^ (x >> 15)
    x = x * MULTIPLIER_2
    return x ^ (x >> 16)


@triton.jit
def word(x):  # type: ignore[no-untyped-def]
    """An int32 as a uint32 of the same bits."""
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def uniform(words):  # type: ignore[no-untyped-def]
    """`rng.uniform` of uint32 words."""
    return ((words >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def row_words(keys, site, rows):  # type: ignore[no-untyped-def]
    """The words that the rows of one place in the network start from; `site` as `rng.address` gives it."""
    return words_under(mix(word(keys) ^ word(site)) + GOLDEN, rows)


@triton.jit
def words_under(keys, rows):  # type: ignore[no-untyped-def]
    """`row_words` for keys that are a place's own already, as uint32."""
    return mix(keys ^ mix(word(rows)))


@triton.jit
def kept(words_R, first, threshold, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """(R, C) which elements of rows are kept, from column `first` on, which is even: two side by side share a word."""
    columns = first // 2 + tl.arange(0, C // 2)
    words = mix(words_R[:, None] ^ mix(word(columns))[None, :])
    return tl.interleave(words & 0xFFFF, words >> 16) >= threshold


@triton.jit(do_not_specialize=["before", "after"])
def _mix_all(words, out, count, step, before, after, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mixed = mix(word(tl.load(words + place * step, place < count, 0) ^ before)) + word(after)
    tl.store(out + place, mixed.to(tl.int32, bitcast=True), place < count)


def mix_words(words: Tensor, before: int = 0, after: int = 0) -> Tensor:
    """`rng.mix` of int32 words ^ before, + after: signed 32-bit numbers."""
    words = words if words.dim() == 1 else words.contiguous()
    step = words.stride(0) if words.dim() == 1 else 1
    out = torch.empty_like(words, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(words):
        _mix_all[(triton.cdiv(words.numel(), 1024),)](
            words, out, words.numel(), step, before, after, BLOCK=1024, num_warps=4
        )
    return out


@dataclass(frozen=True, slots=True)
class Drop:
    """Dropout at one place in the network; without keys, none."""

    keys_B: Tensor | None
    rate: float
    place: int

    @property
    def site(self) -> int:
        word: int = rng.address(self.place)
        return word

    @property
    def threshold(self) -> int:
        return rng.drop_threshold(self.rate)

    @property
    def grow(self) -> float:
        """What the elements that stay are multiplied by."""
        return 1.0 / (1.0 - self.rate)


def drop_at(keys_B: Tensor | None, rate: float, place: int) -> Drop:
    """Dropout at a place: none without keys or at rate 0."""
    return Drop(None if rate == 0.0 else keys_B, rate, place)


def precision(dtype: torch.dtype) -> str:
    """How products of this type are computed: fp32 ones in full."""
    return "ieee" if dtype == torch.float32 else "tf32"
