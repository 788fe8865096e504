"""Randomness by address: the same bits for the same address, on any device, in any order.

A key is a 32-bit word held in an int32 (a number, a NumPy array or a torch tensor). `derive` makes one from names
and numbers on the host, `fold` makes children of it, `bits` reads random words at indices. All of it is wrapping
32-bit integer arithmetic that NumPy, eager torch and compiled kernels do alike, so one definition serves them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

Words = TypeVar("Words")  # int32 numpy array or torch tensor

_GOLDEN = 0x9E3779B9 - (1 << 32)
_M1 = 0x7FEB352D
_M2 = 0x846CA68B - (1 << 32)


def derive(*address: int | str) -> int:
    """A key for an address such as (seed, "order", epoch), as a signed 32-bit number."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little", signed=True)


mix_on_gpu: Callable[[Any, int, int], Any] | None = None
"""mix(x ^ before) + after of torch tensors in one launch; `electra.kernels` puts it here where it can."""
fold_on_cpu: Callable[[Any, int, int], Any] | None = None
"""The same on a CPU, in one loop; gives None where that does not run."""


def mix(x: Any) -> Any:
    """Avalanche every bit of int32 words (the `lowbias32` permutation)."""
    found = _at_once(x, 0, 0)
    if found is not None:
        return found
    x = x ^ _shifted(x, 16)
    x *= _M1
    x ^= _shifted(x, 15)
    x *= _M2
    x ^= _shifted(x, 16)
    return x


def _at_once(x: Any, before: Any, after: int) -> Any:
    """mix(x ^ before) + after, where there is a kernel or a loop for it."""
    on_gpu = getattr(x, "is_cuda", None)  # None: no tensor
    ready = mix_on_gpu if on_gpu else fold_on_cpu
    if on_gpu is None or ready is None or not isinstance(before, int) or _compiling():
        return None
    return ready(x, before, after)


def _compiling() -> bool:
    """Whether this is being turned into a kernel together with what stands around it."""
    import torch

    return torch.compiler.is_compiling()


def _shifted(x: Any, count: int) -> Any:
    """Words shifted right with zeros coming in; in place after the first pass, since masks are drawn by the million."""
    y = x >> count
    y &= (1 << (32 - count)) - 1
    return y


def address(data: Any) -> Any:
    """What `fold` mixes into a key for `data`: a kernel that folds on its own is handed this word."""
    return _mix_int(data * _GOLDEN) if isinstance(data, int) else mix(data * _GOLDEN)


def fold(key: Any, data: Any) -> Any:
    """The child key of `key` at `data`; either may be an array of int32 words."""
    place = address(data)
    found = _at_once(key, place, _GOLDEN)
    if found is not None:
        return found
    word = key ^ place
    return _signed(_mix_int(word) + _GOLDEN) if isinstance(word, int) else mix(word) + _GOLDEN


def bits(key: Any, mixed_index: Any) -> Any:
    """Random int32 words at indices that went through `mix` once (an index table is worth keeping)."""
    return mix(key ^ mixed_index)


def drop_threshold(rate: float) -> int:
    """The 16-bit number below which half a word drops its element, at this rate of dropout."""
    return min(round(rate * 65536), 65535)  # which has to fit into the half


def uniform(words: Any) -> Any:
    """Torch float32 numbers strictly inside (0, 1) from random words."""
    # 23 bits, so that half a step more is exact: with 24 the highest word would round to 1.
    return (((words >> 9) & 0x7FFFFF).float() + 0.5) * (1.0 / (1 << 23))


def _mix_int(x: int) -> int:
    """`mix` for a Python number, wrapped to signed 32 bits."""
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * _M1) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * (_M2 & 0xFFFFFFFF)) & 0xFFFFFFFF
    return _signed(x ^ x >> 16)


def _signed(x: int) -> int:
    """The low 32 bits of a number, read as a signed word."""
    x &= 0xFFFFFFFF
    return x - (1 << 32) if x >= 1 << 31 else x
