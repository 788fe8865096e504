"""Launches that compile and do not run: all kernels of a step are compiled at once, in threads.

Triton's compiler and the C compiler of its launchers run without Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

MAX_THREADS = 16
_UNFILLED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Zeros(TorchDispatchMode):
    """New tensors that a kernel would fill are zeros: they may be positions and ids, and an index must exist."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        made = operation(*arguments, **(named or {}))
        return made.zero_() if operation.overloadpacket.__name__ in _UNFILLED else made


@contextmanager
def launches_compiled(device: torch.device) -> Iterator[None]:
    """Within the block a launch of a Triton kernel begins to compile it for these arguments, each kind once.

    The block ends when all are compiled and loaded. One that does not compile says so at its real launch.
    """
    run, kinds = JITFunction.run, set[Hashable]()
    threads = min(MAX_THREADS, os.cpu_count() or 1)

    def compiled(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        made = run(kernel, *arguments, warmup=True, **named)
        _ = made.run  # makes the launcher and loads the machine code

    def begin(kernel: Any, *arguments: Any, warmup: bool, **named: Any) -> None:
        values = [
            value if param.is_constexpr else _kind(value)
            for param, value in zip(kernel.params, arguments, strict=False)
        ]
        kind = (kernel, *values, *((name, value) for name, value in named.items() if name != "grid"))
        if kind not in kinds:
            kinds.add(kind)
            pool.submit(compiled, kernel, arguments, named)

    with ThreadPoolExecutor(threads, "electra-compile", torch.cuda.set_device, (device,)) as pool:
        JITFunction.run = begin
        try:
            with Zeros():  # type: ignore[no-untyped-call]
                yield
        finally:
            JITFunction.run = run


def _kind(value: Any) -> Hashable:
    """What of an argument decides which code a kernel is compiled to."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int):
        return type(value), value.bit_length() > 31, value % 16 == 0, value == 1
    return type(value).__name__
