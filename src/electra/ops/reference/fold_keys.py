"""Child keys at an address: `rng.fold`, in a dozen integer operations."""

from __future__ import annotations

from torch import Tensor

from electra import rng


def fold_keys(keys: Tensor, call_site: int) -> Tensor:
    folded: Tensor = rng.fold(keys, call_site)
    return folded
