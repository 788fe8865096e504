"""Kernels in CUDA C++, compiled where they run by the runtime compiler that comes with torch.

Their sources are in `cuda`, without any header. They know bf16 and heads of 64, and are made of what Hopper has; all
else takes the kernels in Triton.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.fsio import cache_path, write_atomic
from electra.progress import say

HERE = Path(__file__).parent / "cuda"
HEAD = 64
LONGEST = 128
"""Tokens of a sequence that one block holds."""
TILE = LONGEST * HEAD * 2
PROCESSORS = 132
"""Multiprocessors of a large chip."""
_HOPPER = 9  # the generation with products of warp groups
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of the driver's launch attributes


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of the sources' entry points, the files that it is made of, and the bytes that a block has on the chip."""

    name: str
    files: tuple[str, ...]
    memory: int
    threads: int = 256
    together: int = 2
    """How many blocks share a multiprocessor."""

    def source(self) -> str:
        """All of it, as one text."""
        return "\n".join((HERE / f"{name}.cu").read_text(encoding="utf-8") for name in ("warp", "rows", *self.files))


@dataclass(frozen=True, slots=True)
class Boxes:
    """A matrix that Hopper copies by itself, in boxes of 64 columns and so many rows, none across the end of a text."""

    matrix: Tensor
    rows: int
    length: int | None = None
    """Rows of a text; without it, all are one."""

    def texts(self) -> tuple[int, int]:
        """How many, of how many rows."""
        length = self.length or len(self.matrix)
        return len(self.matrix) // length, length


class _Attribute(ctypes.Structure):
    """The driver's `CUlaunchAttribute`, with a number for a value."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_int32), ("unused", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("x", "y", "z", "threads_x", "threads_y", "threads_z", "memory")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


Given = Tensor | Boxes | bytes | int | float | None
"""What a kernel is told; bytes are a structure of its own."""


def can_run(like: Tensor, kernel: Kernel) -> bool:
    """Whether a kernel runs on what `like` is made of, on its device."""
    if like.dtype != torch.bfloat16 or not like.is_cuda:
        return False
    major, room, _ = _facts(like.device)
    return major == _HOPPER and kernel.memory <= room and not missing() and _compiles(kernel, like.device)


def processors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return _facts(device)[2] if device.type == "cuda" else PROCESSORS


def launch(kernel: Kernel, blocks: int, *given: Given) -> None:
    """Start a kernel on the current stream; a tensor stands for its address, None for no array."""
    values = [_value(one) for one in given]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    start(kernel, blocks, pointers)


def aligned(weight: Tensor) -> Tensor:
    """The weight, or a copy that begins where kernels can fetch it: in one buffer with others it may lie anywhere."""
    return weight.clone() if weight.data_ptr() % 16 else weight


def start(kernel: Kernel, blocks: int, pointers: Any) -> None:
    """Launch with an array of pointers to arguments.

    Its blocks may come while the last ones of the kernel before are at work: each waits by itself (`after_others`).
    """
    device = torch.cuda.current_device()
    _have_context(device)
    function = _function(kernel, device)
    early = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    dimensions = (blocks, 1, 1, kernel.threads, 1, 1, kernel.memory)
    how = _Launch(*dimensions, torch.cuda.current_stream().cuda_stream, ctypes.pointer(early), 1)
    _must(_driver().cuLaunchKernelEx(ctypes.byref(how), function, pointers, None), kernel.name)


def describe(boxes: Boxes) -> Any:
    """What a kernel is told of them: the driver's own description."""
    texts, length = boxes.texts()
    columns, stride = boxes.matrix.shape[1], boxes.matrix.stride(0) * 2
    room = (ctypes.c_char * 192)()
    described = (ctypes.c_char * 128).from_buffer(room, -ctypes.addressof(room) % 64)
    sizes, strides = (ctypes.c_uint64 * 3)(columns, length, texts), (ctypes.c_uint64 * 2)(stride, stride * length)
    box, every = (ctypes.c_uint32 * 3)(HEAD, boxes.rows, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    address = ctypes.c_void_p(boxes.matrix.data_ptr())
    # bf16, three dimensions; rows of 128 bytes turned about by their number; 256 bytes a fetch; zeros outside
    kind, swizzle, promotion = 9, 3, 3
    encode = _driver().cuTensorMapEncodeTiled
    failed = encode(described, kind, 3, address, sizes, strides, box, every, 0, swizzle, promotion, 0)
    _must(failed, f"{texts} texts of {length} x {columns}")
    return described


def _have_context(device: int) -> None:
    """Give this thread the device's context: in autograd's, torch leaves that to the first call that needs it."""
    driver, context = _driver(), ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        _must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "the device's context")
        _must(driver.cuCtxSetCurrent(context), "the device's context")


@functools.cache
def missing() -> str:
    """What this machine lacks to compile them; nothing where it can."""
    try:
        _compiler()
    except OSError as error:
        return str(error)
    return ""


def compile_kernel(kernel: Kernel, architecture: str) -> bytes:
    """Machine code of a kernel for an architecture such as `sm_90a`; RuntimeError with the compiler's log."""
    library = _compiler()
    program, name = ctypes.c_void_p(), f"{kernel.name}.cu".encode()
    source = kernel.source().encode()
    if library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None):
        raise RuntimeError(f"{kernel.name}: the runtime compiler does not start")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    failed = library.nvrtcCompileProgram(program, 1, options)
    if failed:
        log = _bytes_of(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        raise RuntimeError(f"{kernel.name} does not compile for {architecture}:\n{log.decode()}")
    code = _bytes_of(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def _value(given: Given) -> Any:
    if isinstance(given, Tensor):
        return ctypes.c_void_p(given.data_ptr())
    if isinstance(given, Boxes):
        return describe(given)
    if isinstance(given, bytes):
        return ctypes.create_string_buffer(given, len(given))
    if given is None:
        return ctypes.c_void_p(None)
    return ctypes.c_float(given) if isinstance(given, float) else ctypes.c_int32(given)


@functools.cache
def _facts(device: torch.device) -> tuple[int, int, int]:
    """A GPU's generation, the bytes that a block may have on its chip, and how many multiprocessors it has."""
    facts = torch.cuda.get_device_properties(device)
    return facts.major, facts.shared_memory_per_block_optin, facts.multi_processor_count  # type: ignore[attr-defined]


@functools.cache
def _compiles(kernel: Kernel, device: torch.device) -> bool:
    """Whether the compiler at hand knows the GPU; said once where it does not."""
    try:
        _code(kernel, device)
    except RuntimeError as error:
        say(f"warning: {error}\n  slower kernels take its place")
        return False
    return True


def _code(kernel: Kernel, device: torch.device | int) -> bytes:
    facts = torch.cuda.get_device_properties(device)
    return _kept(kernel, f"sm_{facts.major}{facts.minor}a")  # with what no later one has


@functools.cache
def _function(kernel: Kernel, device: int) -> ctypes.c_void_p:
    """The kernel, loaded on a device."""
    code = _code(kernel, device)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver = _driver()
    _must(driver.cuModuleLoadData(ctypes.byref(module), code), kernel.name)
    _must(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode()), kernel.name)
    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and _PREFERRED_SHARED_MEMORY_CARVEOUT in percent: two blocks fit.
    for attribute, value in ((8, kernel.memory), (9, 100)):
        _must(driver.cuFuncSetAttribute(function, attribute, value), kernel.name)
    return function


def _kept(kernel: Kernel, architecture: str) -> bytes:
    """Machine code from an earlier run, or compiled and kept for the next."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    stamp = f"{architecture} {major.value}.{minor.value} {kernel.source()}"
    # A home that cannot be read or written to costs seconds at every start, and nothing else.
    with contextlib.suppress(OSError, RuntimeError):
        return cache_path(kernel.files[-1], stamp, ".cubin").read_bytes()
    code = compile_kernel(kernel, architecture)
    with contextlib.suppress(OSError, RuntimeError):
        write_atomic(cache_path(kernel.files[-1], stamp, ".cubin"), code)
    return code


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _compiler() -> ctypes.CDLL:
    """The runtime compiler: loaded by name, or from among the packages that torch brings."""
    major = (torch.version.cuda or "13").partition(".")[0]
    names = [f"libnvrtc.so.{major}"]
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        names += [str(path) for path in sorted(Path(folder).glob(f"*/lib/libnvrtc.so.{major}"))]
    for name in [*names, "libnvrtc.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("no CUDA runtime compiler (libnvrtc)")


def _bytes_of(size_of: Any, copy: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    copy(program, text)
    return text.raw


def _must(result: int, name: str) -> None:
    if result:
        raise RuntimeError(f"{name}: CUDA driver error {result}")
