"""Kernels in CUDA C++ without a GPU: built for the host with `emulator.h`, and started in place of a launch."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from electra.kernels import native
from electra.kernels.native import Boxes, Kernel

EMULATOR = Path(__file__).with_name("emulator.h")


@functools.cache
def compiler() -> str:
    """The host's C++ compiler, where it knows barriers; else nothing."""
    found = shutil.which("g++") or ""
    asked = [found, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    known = found and subprocess.run(asked, input="#include <barrier>", text=True, capture_output=True).returncode == 0
    return found if known else ""


needs_compiler = pytest.mark.skipif(not compiler(), reason="needs g++ with C++20")


@functools.cache
def built(kernel: Kernel, threads: int, *options: str) -> Any:
    """The kernel as a function of (blocks, pointers to arguments), with so many threads a block."""
    folder = Path(tempfile.mkdtemp(prefix="emulated-"))
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(
        f'#include "{EMULATOR}"\n{kernel.source()}\n'
        f'extern "C" void go(int blocks, void** given) {{'
        f" launch({kernel.name}, blocks, {threads}, {kernel.memory}, given); }}\n",
        encoding="utf-8",
    )
    made = [compiler(), "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", *options]
    subprocess.run([*made, "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).go
    shutil.rmtree(folder)
    return function


class Map(ctypes.Structure):
    """What `emulator.h` is told of a matrix."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("texts", "rows", "columns", "stride", "box")),
    )


def emulate(monkeypatch: pytest.MonkeyPatch, *options: str, most_threads: int = 1024) -> None:
    """Have bf16 on the CPU take the kernels in CUDA, built with these options, with at most so many threads a block."""

    def start(kernel: Kernel, blocks: int, pointers: Any) -> None:
        built(kernel, min(kernel.threads, most_threads), *options)(blocks, pointers)

    def can_run(like: Tensor, kernel: Kernel) -> bool:
        return like.dtype == torch.bfloat16

    def describe(boxes: Boxes) -> Any:
        columns, stride = boxes.matrix.shape[1], boxes.matrix.stride(0) * 2
        return Map(boxes.matrix.data_ptr(), *boxes.texts(), columns, stride, boxes.rows)

    monkeypatch.setattr(native, "start", start)
    monkeypatch.setattr(native, "describe", describe)
    monkeypatch.setattr(native, "can_run", can_run)
