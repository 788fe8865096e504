"""Random words in one pass: `rng.mix`, which is otherwise eleven."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.kernels.host.library import call, usable


def mix_words(words: Tensor) -> Tensor | None:
    """`rng.mix` of int32 words on a CPU; None where the loops do not run."""
    if words.dtype != torch.int32 or not usable(words):
        return None
    words = words.contiguous()
    mixed = torch.empty_like(words)
    call("mix", words.dtype, words, mixed, words.numel())
    return mixed
