"""Launches of CUDA kernels and descriptors of TMA tiles, through the CUDA driver.

A launch allows programmatic stream serialization: its blocks may start while the last ones of the kernel before run,
and each waits by itself (`wait_for_previous_kernel` in the sources).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from electra.ops.cuda.compiler import HEAD_SIZE, Kernel, machine_code

MULTIPROCESSORS = 132
"""Of an H100 or H200."""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of the driver's launch attributes
_launches = True


@dataclass(frozen=True, slots=True)
class TmaTiles:
    """A bf16 matrix that TMA loads and stores in tiles of 64 columns and so many rows, none across a sequence's end."""

    matrix: Tensor
    rows: int
    length: int | None = None
    """Rows of a sequence; without it, all rows are one."""

    def sequences(self) -> tuple[int, int]:
        """How many, of how many rows."""
        length = self.length or len(self.matrix)
        return len(self.matrix) // length, length


Argument = Tensor | TmaTiles | bytes | int | float | None
"""Of a kernel: a tensor stands for its address, bytes are a structure, None is a null pointer."""


class _Attribute(ctypes.Structure):
    """The driver's `CUlaunchAttribute`, with a number for a value."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_int32), ("unused", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("x", "y", "z", "threads_x", "threads_y", "threads_z", "shared_bytes")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


def launch(kernel: Kernel, blocks: int, *arguments: Argument) -> None:
    """Start a kernel on the current stream."""
    if not _launches:
        return
    values = [_value(argument) for argument in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    start(kernel, blocks, pointers)


@contextmanager
def without_launches() -> Iterator[None]:
    """Within the block no kernel starts, in any thread: autograd has one of its own."""
    global _launches
    _launches = False
    try:
        yield
    finally:
        _launches = True


def start(kernel: Kernel, blocks: int, pointers: Any) -> None:
    """Launch with an array of pointers to arguments."""
    device = torch.cuda.current_device()
    _ensure_context(device)
    function = _function(kernel, device)
    attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    dimensions = (blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes)
    config = _Launch(*dimensions, torch.cuda.current_stream().cuda_stream, ctypes.pointer(attribute), 1)
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None), kernel.name)


def tensor_map(tiles: TmaTiles) -> Any:
    """The driver's descriptor of TMA tiles, 128 bytes."""
    sequences, length = tiles.sequences()
    columns, stride = tiles.matrix.shape[1], tiles.matrix.stride(0) * 2
    memory = (ctypes.c_char * 192)()
    descriptor = (ctypes.c_char * 128).from_buffer(memory, -ctypes.addressof(memory) % 64)
    sizes, strides = (ctypes.c_uint64 * 3)(columns, length, sequences), (ctypes.c_uint64 * 2)(stride, stride * length)
    tile, steps = (ctypes.c_uint32 * 3)(HEAD_SIZE, tiles.rows, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    address = ctypes.c_void_p(tiles.matrix.data_ptr())
    dtype, swizzle, promotion = 9, 3, 3  # bf16; 128-byte swizzle; 256 bytes of L2 a fetch; zeros outside
    encode = _driver().cuTensorMapEncodeTiled
    failed = encode(descriptor, dtype, 3, address, sizes, strides, tile, steps, 0, swizzle, promotion, 0)
    _check(failed, f"{sequences} sequences of {length} x {columns}")
    return descriptor


def aligned(weight: Tensor) -> Tensor:
    """The weight, or a copy at a multiple of 16 bytes: in one buffer with others it may lie anywhere."""
    return weight.clone() if weight.data_ptr() % 16 else weight


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; `MULTIPROCESSORS` for what emulates one."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _value(argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, TmaTiles):
        return tensor_map(argument)
    if isinstance(argument, bytes):
        return ctypes.create_string_buffer(argument, len(argument))
    if argument is None:
        return ctypes.c_void_p(None)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int32(argument)


def _ensure_context(device: int) -> None:
    """Give this thread the device's context: in autograd's, torch leaves that to the first call that needs it."""
    driver, context = _driver(), ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "the device's context")
        _check(driver.cuCtxSetCurrent(context), "the device's context")


@functools.cache
def _function(kernel: Kernel, device: int) -> ctypes.c_void_p:
    """The kernel, loaded on a device."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver = _driver()
    _check(driver.cuModuleLoadData(ctypes.byref(module), machine_code(kernel, device)), kernel.name)
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode()), kernel.name)
    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and _PREFERRED_SHARED_MEMORY_CARVEOUT in percent: two blocks fit.
    for attribute, value in ((8, kernel.shared_bytes), (9, 100)):
        _check(driver.cuFuncSetAttribute(function, attribute, value), kernel.name)
    return function


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, name: str) -> None:
    if result:
        raise RuntimeError(f"{name}: CUDA driver error {result}")
