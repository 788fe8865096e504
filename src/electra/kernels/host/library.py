"""The loops' library: whether this machine can have it, and calls into it."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import torch
from torch import Tensor

from electra.fsio import cache_path

SOURCES = Path(__file__).parent
OPTIONS = (
    "-std=c++17", "-O3", "-march=native", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-fPIC",
    # Half as wide unless told: g++ fears for the clock, which torch's own loops slow down anyway.
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)  # fmt: skip
TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int32: "int32"}
PLAIN = (Tensor, torch.nn.Parameter)
"""Tensors that lie in memory; subclasses may only stand for one."""
PASSED: dict[type, Any] = {
    int: ctypes.c_int64,
    float: ctypes.c_float,
    **dict.fromkeys((*PLAIN, type(None)), ctypes.c_void_p),
}
"""What arguments are handed over as."""


_wanted = True


def use(wanted: bool = True) -> None:
    """Have CPUs run the loops where they can, or plain operations."""
    global _wanted
    _wanted = wanted


def usable(x: Tensor) -> bool:
    """Whether the loops know such numbers, and this machine can compile them; what is being compiled is left alone."""
    known = _wanted and type(x) in PLAIN and x.device.type == "cpu" and x.dtype in TYPES
    if torch.is_autocast_enabled("cpu"):  # products come out in another type than their biases are in
        return False
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    return known and not traced and _library() is not None


def call(name: str, kind: torch.dtype, *arguments: Tensor | int | float | None) -> None:
    """Run a loop for numbers of a kind; tensors are handed over as where they lie, and must be contiguous."""
    library = _library()
    assert library is not None
    function = _function(library, f"{name}_{TYPES[kind]}", tuple(map(type, arguments)))
    passed = [one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]
    function(*passed, torch.get_num_threads())


@functools.cache
def _function(library: ctypes.CDLL, name: str, kinds: tuple[type, ...]) -> Any:
    """A loop, told what it takes; a step calls them two hundred times."""
    function = library[name]  # one of its own: what is asked for by attribute is told for all
    function.argtypes = [*(PASSED[kind] for kind in kinds), ctypes.c_int64]
    function.restype = None
    return function


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The loops, compiled now or by an earlier run on such a machine; None where that cannot be."""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        path = _kept(compiler)
        _share_threads()
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, a home full or closed, an odd compiler
        return None


def _kept(compiler: str) -> Path:
    """The library for these sources, this compiler and this processor, made where it is not there."""
    sources = sorted(SOURCES.glob("*.cpp"))
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    texts = (path.read_text(encoding="utf-8") for path in (*sorted(SOURCES.glob("*.h")), *sources))
    path = cache_path("loops", "\n".join((version, _processor(), *OPTIONS, *texts)), ".so")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as made:
            library = Path(made) / path.name
            objects = _compiled(compiler, sources, Path(made))
            linked = [compiler, "-shared", "-fopenmp", "-o", str(library), *objects]
            subprocess.run(linked, capture_output=True, check=True, timeout=60)
            library.replace(path)
    return path


def _compiled(compiler: str, sources: list[Path], folder: Path) -> list[str]:
    """What the linker puts together, the sources compiled side by side."""
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    running = [
        subprocess.Popen([compiler, *OPTIONS, "-c", "-o", made, str(source)], stdout=DEVNULL, stderr=DEVNULL)
        for made, source in zip(objects, sources, strict=True)
    ]
    try:
        codes = [process.wait(timeout=120) for process in running]
        if any(codes):
            raise RuntimeError(f"{compiler} does not compile the loops")
    finally:
        for process in running:
            process.kill()
            process.wait()
    return objects


def _share_threads() -> None:
    """Have the loops run on torch's threads: a second set of them would spin on the cores of the first.

    torch may bring OpenMP under a name of its own; what is loaded for all is found before what the linker named.
    """
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in sorted(set(re.findall(r"/\S*/lib[gi]*omp\S*\.so\S*", loaded))):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _processor() -> str:
    """What this machine's processor can do: a home may be shared with machines that can do less."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))})
    return "\n".join((platform.machine(), *known))
