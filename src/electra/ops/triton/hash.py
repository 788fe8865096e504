"""Random bits by address inside Triton kernels, and dropout masks made of them: the bits of `electra.rng`.

fold(key, address) = mix(key ^ address) + golden; bits(key, index) = mix(key ^ mix(index)).
References: `rng` and `reference/dropout.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from electra import rng

GOLDEN: Any = tl.constexpr(0x9E3779B9)
MULTIPLIER_1: Any = tl.constexpr(0x7FEB352D)
MULTIPLIER_2: Any = tl.constexpr(0x846CA68B)


@triton.jit
def mix(x):  # type: ignore[no-untyped-def]
    """`rng.mix` of uint32."""
    x = x ^ (x >> 16)
    x = x * MULTIPLIER_1
    x = x ^ (x >> 15)
    x = x * MULTIPLIER_2
    return x ^ (x >> 16)


@triton.jit
def unsigned(x):  # type: ignore[no-untyped-def]
    """An int32 as a uint32 of the same bits."""
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def fold(key, address):  # type: ignore[no-untyped-def]
    """`rng.fold` of a uint32 key, with `address` as `rng.address` gives it."""
    return mix(key ^ unsigned(address)) + GOLDEN


@triton.jit
def bits(key, index):  # type: ignore[no-untyped-def]
    """`rng.bits` of a uint32 key at int32 indices."""
    return mix(key ^ mix(unsigned(index)))


@triton.jit
def uniform(random_bits):  # type: ignore[no-untyped-def]
    """`rng.uniform` of uint32."""
    return ((random_bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def row_bits(keys, address, rows):  # type: ignore[no-untyped-def]
    """The random bits that the rows of one dropout call site start from."""
    return bits(fold(unsigned(keys), address), rows)


@triton.jit
def keep_mask(bits_R, first, drop_threshold, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """(R, C) which elements dropout keeps, from column `first` on, which is even: two columns share 32 bits."""
    columns = first // 2 + tl.arange(0, C // 2)
    random_bits = mix(bits_R[:, None] ^ mix(unsigned(columns))[None, :])
    return tl.interleave(random_bits & 0xFFFF, random_bits >> 16) >= drop_threshold


@triton.jit
def keep_mask_of_pairs(bits_R, first, drop_threshold, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """(C, R) `keep_mask`, transposed, with columns in this order of 16: 0, 2, ... 14, 1, 3, ... 15.

    In the accumulator of a matrix product a thread has rows r and r + 8 of 16: with this order they share their bits.
    """
    R: tl.constexpr = bits_R.shape[0]
    columns = first // 2 + tl.arange(0, C // 2)
    random_bits = mix(mix(unsigned(columns))[:, None] ^ bits_R[None, :]).reshape(C // 16, 8, R)
    pairs = tl.join(random_bits & 0xFFFF, random_bits >> 16)
    return tl.permute(pairs, (0, 3, 1, 2)).reshape(C, R) >= drop_threshold


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout at one call site of the network; none without keys."""

    keys_B: Tensor | None
    rate: float
    call_site: int

    @property
    def address(self) -> int:
        address: int = rng.address(self.call_site)
        return address

    @property
    def threshold(self) -> int:
        return rng.drop_threshold(self.rate)

    @property
    def scale(self) -> float:
        """1 / keep probability."""
        return 1.0 / (1.0 - self.rate)


def dropout_at(keys_B: Tensor | None, rate: float, call_site: int) -> Dropout:
    """Dropout at a call site: none without keys or at rate 0."""
    return Dropout(None if rate == 0.0 else keys_B, rate, call_site)
