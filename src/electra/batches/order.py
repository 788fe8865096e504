"""The order of samples: an endless stream of epochs, each a permutation, the same for any world size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from electra import rng


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the stream: the next sample is number `offset` of `epoch`'s order."""

    epoch: int = 0
    offset: int = 0


def permutation(count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """A random order of `count` samples. Hashed indices never tie, because the hash is a bijection."""
    key = np.full(1, rng.derive(seed, "order", epoch), np.int32)
    bits = rng.bits(key, rng.mix(np.arange(count, dtype=np.int32)))
    return np.argsort(bits, kind="stable")


def sample_keys(samples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.int32]:
    """The key from which everything random about a sample follows: masks, replacements, dropout."""
    base = np.full(1, rng.derive(seed, "sample", epoch), np.int32)
    low = (samples & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    high = (samples >> 32).astype(np.int32)
    keys: NDArray[np.int32] = rng.fold(rng.fold(base, low), high)
    return keys
