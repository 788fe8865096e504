"""Random words in one pass: `rng.mix` and `rng.fold`, which are otherwise a dozen."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.kernels.host.library import call, usable


def fold_words(words: Tensor, before: int, after: int) -> Tensor | None:
    """`rng.mix` of int32 words ^ before, + after, on a CPU; None where the loops do not run."""
    if words.dtype != torch.int32 or not usable(words):
        return None
    words = words.contiguous()
    folded = torch.empty_like(words)
    call("fold", words.dtype, words, folded, before, after, words.numel())
    return folded
