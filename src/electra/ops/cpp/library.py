"""The C++ ops as one shared library: whether this machine can have it, and calls into it."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import torch
from torch import Tensor

from electra.compiled_cache import cache_path, load_library, write_code

SOURCES = Path(__file__).parent
OPTIONS = (
    "-std=c++17", "-O3", "-march=native", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-fPIC",
    # Half as wide by default: g++ fears for the clock, which torch's own kernels slow down anyway.
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)  # fmt: skip
TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int32: "int32"}
PASSED: dict[type, Any] = {
    int: ctypes.c_int64,
    float: ctypes.c_float,
    **dict.fromkeys((Tensor, torch.nn.Parameter, type(None)), ctypes.c_void_p),
}
"""What arguments are handed over as; a tensor as the address of its first element."""
BUILD_SECONDS = 600  # it takes seven; more, where many processes build at once on few cores
AMX_BLOCK = 32
"""Sizes of heads and weights that AMX multiplies are multiples of it."""


@functools.cache
def missing() -> str:
    """Why this machine cannot have the library; empty where it can, compiled now or by an earlier run."""
    if platform.system() != "Linux":
        return f"C++ ops are built on Linux only, this is {platform.system()}"
    if _compiler() is None:
        return "no C++ compiler (g++, or the one in CXX)"
    try:
        _library()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # no home, a home full or closed, an odd g++
        return f"the C++ ops could not be built: {str(error).partition(chr(10))[0]}"
    return ""


@functools.cache
def has_amx() -> bool:
    """Whether the processor multiplies bf16 by AMX, the library knows it, and the system allows it to this process."""
    return bool(_library()["amx_ready"]())


def call(name: str, dtype: torch.dtype, *arguments: Tensor | int | float | None) -> None:
    """Run a function of the library for a type; tensors must be contiguous."""
    function = _function(_library(), f"{name}_{TYPES[dtype]}", tuple(map(type, arguments)))
    passed = [_address(one) if isinstance(one, Tensor) else one for one in arguments]
    function(*passed, torch.get_num_threads())


def _address(tensor: Tensor) -> int:
    assert tensor.is_contiguous(), "the C++ reads tensors without strides"
    return tensor.data_ptr()


@functools.cache
def _function(library: ctypes.CDLL, name: str, kinds: tuple[type, ...]) -> Any:
    """A function with its argument types set; a step calls them two hundred times."""
    function = library[name]  # by item: each has argument types of its own, where attributes share one object
    function.argtypes = [*(PASSED[kind] for kind in kinds), ctypes.c_int64]
    function.restype = None
    return function


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++")


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = _compiler()
    assert compiler is not None
    path = _cached(compiler)
    _share_threads()
    library = load_library(path)
    if library is None:  # damaged, or not built yet
        write_code(path, _built(compiler, path.parent))
        library = load_library(path)
    if library is None:
        raise OSError(f"{path} cannot be loaded")
    return library


def _cached(compiler: str) -> Path:
    """Where the library for these sources, this compiler and this processor is kept."""
    sources = sorted(SOURCES.glob("*.cpp"))
    asked = [compiler, "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, errors="replace", check=True, timeout=60).stdout
    contents = (path.read_text(encoding="utf-8") for path in (*sorted(SOURCES.glob("*.h")), *sources))
    return cache_path("cpp-ops", "\n".join((version, _processor(), *OPTIONS, *contents)), ".so")


def _built(compiler: str, parent: Path) -> bytes:
    """The library, compiled and linked in a folder that goes away."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        library = Path(folder) / "ops.so"
        objects = _compiled(compiler, sorted(SOURCES.glob("*.cpp")), Path(folder))
        linking = [compiler, "-shared", "-fopenmp", "-o", str(library), *objects]
        subprocess.run(linking, capture_output=True, check=True, timeout=60)
        return library.read_bytes()


def _compiled(compiler: str, sources: list[Path], folder: Path) -> list[str]:
    """The object files, the sources compiled side by side."""
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    running = [
        subprocess.Popen([compiler, *OPTIONS, "-c", "-o", made, str(source)], stdout=DEVNULL, stderr=DEVNULL)
        for made, source in zip(objects, sources, strict=True)
    ]
    try:
        codes = [process.wait(timeout=BUILD_SECONDS) for process in running]
        if any(codes):
            raise RuntimeError(f"{compiler} does not compile the sources")
    finally:
        for process in running:
            process.kill()
            process.wait()
    return objects


def _share_threads() -> None:
    """Have the library run on torch's threads: a second pool would spin on the cores of the first.

    torch may bring OpenMP under a name of its own; what is loaded globally is found before what the linker named.
    """
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    for path in sorted(set(re.findall(r"/.*/lib[gi]*omp[^/]*\.so[^/\n]*$", loaded, re.MULTILINE))):
        with suppress(OSError):  # deleted under this process
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _processor() -> str:
    """What this machine's processor can do: a home may be shared with machines that can do less."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))})
    return "\n".join((platform.machine(), *known))
