"""Launches that compile and do not run: all kernels of a step are compiled at once, in threads.

Triton's compiler and the C compiler of its launchers run without Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

MAX_THREADS = 16
_UNFILLED = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


@triton.jit
def _nothing_kernel(x):  # type: ignore[no-untyped-def]
    """Does nothing; compiled to begin with."""


@cache
def begin(device: torch.device) -> Future[None]:
    """Begin what Triton does once in a process: it compiles its part of the driver and sums up its own files."""

    run = JITFunction.run

    def first() -> None:
        torch.cuda.set_device(device)
        _ = run(_nothing_kernel, torch.zeros(1, device=device), grid=(1,), warmup=True).run

    pool = ThreadPoolExecutor(1, "electra-compile")
    begun = pool.submit(first)
    pool.shutdown(wait=False)
    return begun


@contextmanager
def launches_compiled(device: torch.device) -> Iterator[None]:
    """Within the block a launch of a Triton kernel begins to compile it for these arguments, each kind once.

    The block ends when all are compiled and loaded. One that does not compile says so at its real launch.
    """
    run, kinds, begun = JITFunction.run, set[Hashable](), begin(device)
    threads = min(MAX_THREADS, os.cpu_count() or 1)

    def compiled(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        begun.exception()  # waits; otherwise every thread would do the same
        made = run(kernel, *arguments, warmup=True, **named)
        _ = made.run  # makes the launcher and loads the machine code

    def compile_instead(kernel: Any, *arguments: Any, warmup: bool, **named: Any) -> None:
        values = [
            value if param.is_constexpr else _kind(value)
            for param, value in zip(kernel.params, arguments, strict=False)
        ]
        kind = (kernel, *values, *((name, value) for name, value in named.items() if name != "grid"))
        if kind not in kinds:
            kinds.add(kind)
            pool.submit(compiled, kernel, arguments, named)

    with ThreadPoolExecutor(threads, "electra-compile", torch.cuda.set_device, (device,)) as pool:
        JITFunction.run = compile_instead
        try:
            with _Zeros():
                yield
        finally:
            JITFunction.run = run


class _Zeros(TorchFunctionMode):
    """New tensors that a kernel would fill are zeros: they may be positions and ids, and an index must exist.

    A dispatch mode would see more of them, but brings in the compiler's packages, which takes seconds.
    """

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        made = function(*arguments, **(named or {}))
        return made.zero_() if function in _UNFILLED else made


def _kind(value: Any) -> Hashable:
    """What of an argument decides which code a kernel is compiled to."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int):
        return type(value), value.bit_length() > 31, value % 16 == 0, value == 1
    return type(value).__name__
