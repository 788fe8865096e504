"""Kernels compiled before they are needed, side by side: one after another they take most of a machine's first start.

CUDA sources are known beforehand. What a Triton kernel is compiled for depends on the arguments of its launch, so a
step is done once with launches that compile and do not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec

import torch

from electra.ops.dispatch import Kernels, cuda_missing, triton_missing


def compile_sources(kernels: Kernels = "auto", *, device: torch.device, dtype: torch.dtype) -> None:
    """Begin to compile the CUDA kernels that `select` may choose, beside what else a start has to do."""
    if launches_compile(kernels, device=device):
        import_module("electra.ops.triton.compiling").begin(device)
    if kernels == "auto" and dtype == torch.bfloat16 and not cuda_missing(device):
        import_module("electra.ops.cuda.compiler").compile_ahead(device)


def launches_compile(kernels: Kernels = "auto", *, device: torch.device) -> bool:
    """Whether `compile_launches` has anything to do on a device."""
    return kernels == "auto" and device.type == "cuda" and not triton_missing()


@contextmanager
def compile_launches(device: torch.device) -> Iterator[None]:
    """Within the block kernels are compiled where they would be launched; it ends when all of them are.

    What they would have written is not written: new tensors are zeros, and what is computed from them is noise.
    """
    with ExitStack() as stack:
        if find_spec("electra.ops.cuda") is not None:
            stack.enter_context(import_module("electra.ops.cuda.driver").without_launches())
        stack.enter_context(import_module("electra.ops.triton.compiling").launches_compiled(device))
        yield
