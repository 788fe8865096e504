"""Randomness by address: the same bits for the same address, on any device, in any order.

A key is 32 bits held in an int32 (a number, a NumPy array or a torch tensor). `derive` makes one from names and numbers
on the host, `fold` makes child keys, `bits` reads random bits at indices. All of it is wrapping 32-bit integer
arithmetic that NumPy, torch and kernels do alike, so one definition serves them all.
"""

from __future__ import annotations

import hashlib
from typing import Any

GOLDEN = 0x9E3779B9 - (1 << 32)
_M1 = 0x7FEB352D
_M2 = 0x846CA68B - (1 << 32)


def derive(*address: int | str) -> int:
    """A key for an address such as (seed, "order", epoch), as a signed 32-bit number."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little", signed=True)


def mix(x: Any) -> Any:
    """Every bit of int32 `x` spread over all 32 (the `lowbias32` permutation)."""
    x = x ^ _shifted(x, 16)
    x *= _M1
    x ^= _shifted(x, 15)
    x *= _M2
    x ^= _shifted(x, 16)
    return x


def _shifted(x: Any, count: int) -> Any:
    """`x` shifted right with zeros coming in; in place after the first pass, since masks are drawn by the million."""
    y = x >> count
    y &= (1 << (32 - count)) - 1
    return y


def address(data: Any) -> Any:
    """What `fold` mixes into a key for `data`: a kernel that folds on its own is handed this number."""
    return _mix_int(data * GOLDEN) if isinstance(data, int) else mix(data * GOLDEN)


def fold(key: Any, data: Any) -> Any:
    """The child key of `key` at `data`; either may be an int32 array."""
    bits = key ^ address(data)
    return _signed(_mix_int(bits) + GOLDEN) if isinstance(bits, int) else mix(bits) + GOLDEN


def bits(key: Any, mixed_index: Any) -> Any:
    """32 random bits each at indices that went through `mix` once (an index table is worth keeping)."""
    return mix(key ^ mixed_index)


def drop_threshold(rate: float) -> int:
    """The number below which 16 random bits drop their element, at this rate of dropout."""
    return min(round(rate * 65536), 65535)  # it has to fit into 16 bits


def uniform(bits: Any) -> Any:
    """Torch float32 numbers strictly inside (0, 1) from random bits."""
    # 23 bits, so that half a step more is exact: with 24 the highest number would round to 1.
    return (((bits >> 9) & 0x7FFFFF).float() + 0.5) * (1.0 / (1 << 23))


def _mix_int(x: int) -> int:
    """`mix` for a Python number, wrapped to signed 32 bits."""
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * _M1) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * (_M2 & 0xFFFFFFFF)) & 0xFFFFFFFF
    return _signed(x ^ x >> 16)


def _signed(x: int) -> int:
    """The low 32 bits of a number, as a signed number."""
    x &= 0xFFFFFFFF
    return x - (1 << 32) if x >= 1 << 31 else x
