"""Fused kernels, for GPUs in Triton and CUDA and for CPUs in C++ (`host`), each with a plain twin in `model` or
`objective` that says what it computes."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch
from torch import Tensor

from electra import rng
from electra.kernels.host.words import fold_words


def missing() -> str:
    """What this machine lacks for the kernels; nothing where they run."""
    if not torch.cuda.is_available():
        return "no GPU"
    if find_spec("triton") is None:
        return "triton is not installed"
    # Triton builds a small launcher for each kernel.
    if not any(name and shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang")):
        return "no C compiler (gcc or clang)"
    return ""


def fits(length: int, head: int) -> bool:
    """Whether the attention kernels know texts of this length and heads of this size."""
    return length >= 16 and head in (16, 32, 64)


USABLE = not missing()
"""Whether fused kernels run here."""


def _mix(words: Tensor, before: int, after: int) -> Tensor:
    from electra.kernels.hashing import mix_words

    return mix_words(words, before, after)


def in_one_launch(wanted: bool = True) -> None:
    """Have hashes, masks and slots on a GPU computed by a kernel each, where kernels run, or operation by operation."""
    rng.mix_on_gpu = _mix if wanted and USABLE else None


def one_launch(x: Tensor) -> bool:
    """Whether `in_one_launch` holds for what is computed of `x`; what is compiled is fused as it is."""
    return rng.mix_on_gpu is not None and x.is_cuda and not torch.compiler.is_compiling()


rng.fold_on_cpu = fold_words
in_one_launch()
