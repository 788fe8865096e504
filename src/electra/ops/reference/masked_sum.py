"""Σ nll over the masked positions in use."""

from __future__ import annotations

from torch import Tensor


def masked_sum(nll_M: Tensor, used_BM: Tensor) -> Tensor:
    return (nll_M * used_BM.flatten().float()).sum()
