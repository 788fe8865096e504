"""CUDA C++ compiled where it runs, by the runtime compiler (NVRTC) that comes with torch; machine code is cached.

The sources beside this file use no header but their own `.cuh` files.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from concurrent.futures import Future, ThreadPoolExecutor
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


def source_of(file: str) -> str:
    """A source with its includes in their place, each once: the runtime compiler knows no folders."""
    return _expanded(f"{file}.cu", set())


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


def compile_source(file: str, architecture: str) -> bytes:
    """Machine code of a source for an architecture such as `sm_90a`; RuntimeError with the compiler's log."""
    library = _compiler()
    program, source = ctypes.c_void_p(), source_of(file).encode()
    if library.nvrtcCreateProgram(ctypes.byref(program), source, f"{file}.cu".encode(), 0, None, None):
        raise RuntimeError(f"{file}.cu: the runtime compiler does not start")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    failed = library.nvrtcCompileProgram(program, 1, options)
    if failed:
        log = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        raise RuntimeError(f"{file}.cu does not compile for {architecture}:\n{log.decode()}")
    code = _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def compile_ahead(device: torch.device) -> None:
    """Begin to compile every source that the cache lacks, side by side: the first launch waits for its own alone."""
    architecture, version = _target(device)
    paths = {_cached(path.stem, architecture, version): path.stem for path in sorted(SOURCES.glob("*.cu"))}
    lacking = [path for path in paths if path not in _compiling and read_code(path) is None]
    if not lacking:
        return
    pool = ThreadPoolExecutor(len(lacking), thread_name_prefix="electra-compile")
    _compiling.update({path: pool.submit(_compile, paths[path], architecture, path) for path in lacking})
    pool.shutdown(wait=False)


def machine_code(kernel: Kernel, device: torch.device | int) -> bytes:
    """The code with a kernel for a GPU: from the cache, from `compile_ahead`, or compiled and cached."""
    architecture, version = _target(device)
    path = _cached(kernel.file, architecture, version)
    if path in _compiling:
        return _compiling[path].result()
    code = read_code(path)
    return _compile(kernel.file, architecture, path) if code is None else code


_compiling: dict[Path, Future[bytes]] = {}


def _compile(file: str, architecture: str, path: Path) -> bytes:
    code = compile_source(file, architecture)
    with contextlib.suppress(OSError):  # a full disk costs seconds at every start, and nothing else
        write_code(path, code)
    return code


def _target(device: torch.device | int) -> tuple[str, str]:
    """The architecture that a GPU's code is for, and the compiler's version."""
    properties = torch.cuda.get_device_properties(device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    # `a`: wgmma and the rest that only Hopper has
    return f"sm_{properties.major}{properties.minor}a", f"{major.value}.{minor.value}"


def _cached(file: str, architecture: str, version: str) -> Path:
    return cache_path(file, f"{architecture} {version} {source_of(file)}", ".cubin")


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
