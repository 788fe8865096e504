"""Loops in C++ for CPUs, compiled where they run; without a compiler plain operations do the same in more passes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from electra.fsio import cache_path

SOURCES = Path(__file__).parent / "host"
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def can_drop(x: Tensor) -> bool:
    """Whether `drop` knows such numbers, and this machine can compile it."""
    return x.device.type == "cpu" and x.dtype in _TYPES and _library() is not None


def drop(x: Tensor, keys_B: Tensor, indices_P: Tensor, *, threshold: int, grow: float) -> Tensor:
    """`x` with elements zeroed and the rest multiplied, as `model.dropout.keep_mask` chooses them.

    `indices_P` are the mixed indices of the pairs of a row.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    texts, width = len(x), x.shape[-1]
    function = getattr(_library(), f"drop_{_TYPES[x.dtype]}")
    arrays = (x, y, keys_B.contiguous(), indices_P)
    sizes = (texts, x.numel() // max(1, texts * width), width)
    function(
        *(ctypes.c_void_p(array.data_ptr()) for array in arrays), *(ctypes.c_int64(size) for size in sizes),
        ctypes.c_int32(threshold), ctypes.c_float(grow), ctypes.c_int(torch.get_num_threads()),
    )  # fmt: skip
    return y


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The loops, compiled now or by an earlier run on such a machine; None where that cannot be."""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        return None
    try:
        return ctypes.CDLL(str(_kept(compiler, SOURCES / "dropout.cpp")))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, a home full or closed, an odd compiler
        return None


def _kept(compiler: str, source: Path) -> Path:
    """The library for this source, compiler and processor, made where it is not there."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    stamp = "\n".join((version, _processor(), *OPTIONS, source.read_text(encoding="utf-8")))
    path = cache_path(source.stem, stamp, ".so")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as made:
            library = Path(made) / path.name
            command = [compiler, *OPTIONS, "-o", str(library), str(source)]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
            library.replace(path)
    return path


def _processor() -> str:
    """What this machine's processor can do: a home may be shared with machines that can do less."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))})
    return "\n".join((platform.machine(), *known))
