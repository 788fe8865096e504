"""CUDA C++ compiled where it runs, by the runtime compiler (NVRTC) that comes with torch; machine code is cached.

The sources beside this file use no header but their own `.cuh` files.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from electra.compiled_cache import cache_path, read_code, write_code

SOURCES = Path(__file__).parent
HEAD_SIZE = 64
MAX_LENGTH = 128
"""Tokens of a sequence that one block holds."""
TILE_BYTES = MAX_LENGTH * HEAD_SIZE * 2
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An entry point of a source, and what a block of it takes."""

    name: str
    file: str
    """The source's name without `.cu`."""
    shared_bytes: int
    threads: int = 256
    blocks_per_multiprocessor: int = 2

    def source(self) -> str:
        """The file with its includes in their place, each once: the runtime compiler knows no folders."""
        return _expanded(f"{self.file}.cu", set())


def _expanded(name: str, included: set[str]) -> str:
    if name in included:
        return ""
    included.add(name)
    return _INCLUDE.sub(lambda line: _expanded(line[1], included), (SOURCES / name).read_text(encoding="utf-8"))


@functools.cache
def missing(device: torch.device | None = None) -> str:
    """What this machine lacks to compile CUDA C++, for a GPU where one is named; empty where it can."""
    try:
        library = _compiler()
    except OSError as error:
        return str(error)
    if device is None:
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    architectures = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(architectures)
    return "" if 10 * major + minor in architectures else f"the CUDA runtime compiler is too old for sm_{major}{minor}"


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
        log = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        raise RuntimeError(f"{kernel.name} does not compile for {architecture}:\n{log.decode()}")
    code = _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def machine_code(kernel: Kernel, device: torch.device | int) -> bytes:
    """A kernel for a GPU, from the cache or compiled and cached."""
    properties = torch.cuda.get_device_properties(device)
    architecture = f"sm_{properties.major}{properties.minor}a"  # `a`: wgmma and the rest that only Hopper has
    major, minor = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    stamp = f"{architecture} {major.value}.{minor.value} {kernel.source()}"
    path = cache_path(kernel.file, stamp, ".cubin")
    code = read_code(path)
    if code is None:
        code = compile_kernel(kernel, architecture)
        with contextlib.suppress(OSError):  # a full disk costs seconds at every start, and nothing else
            write_code(path, code)
    return code


@functools.cache
def _compiler() -> ctypes.CDLL:
    """NVRTC, loaded by name or from among the packages that torch brings."""
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


def _read(size_of: Any, copy: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    copy(program, text)
    return text.raw
