"""CUDA kernels without a GPU: compiled for the CPU with `emulator.h`, and called in place of a launch."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from electra.compiled_cache import cache_path
from electra.ops.cuda import driver
from electra.ops.cuda.compiler import Kernel, source_of
from electra.ops.cuda.driver import TmaTiles

EMULATOR = Path(__file__).with_name("emulator.h")


@functools.cache
def compiler() -> str:
    """The path of a g++ that has C++20's barriers; empty without one."""
    found = shutil.which("g++") or ""
    command = [found, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    if not found:
        return ""
    checked = subprocess.run(command, input="#include <barrier>", text=True, capture_output=True)
    return "" if checked.returncode else found


needs_compiler = pytest.mark.skipif(not compiler(), reason="needs g++ with C++20")


@functools.cache
def _version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def compiled(kernel: Kernel, threads: int, *options: str) -> Any:
    """The kernel as a function of (blocks, pointers to arguments), so many threads a block; cached between runs.

    No path is part of what it is made from: every checkout of the same sources finds the same library.
    """
    source = (
        f'#include "{EMULATOR.name}"\n{source_of(kernel.file)}\n'
        f'extern "C" void run(int blocks, void** arguments) {{'
        f" launch({kernel.name}, blocks, {threads}, {kernel.shared_bytes}, arguments); }}\n"
    )
    command = [compiler(), "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", *options]
    made_from = "\n".join((_version(), *command, EMULATOR.read_text(encoding="utf-8"), source))
    library = cache_path(f"emulated-{kernel.name}", made_from, ".so")
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            unfinished = Path(folder) / library.name
            (Path(folder) / "kernel.cpp").write_text(source, encoding="utf-8")
            files = [f"-I{EMULATOR.parent}", "-o", str(unfinished), str(Path(folder) / "kernel.cpp")]
            subprocess.run([*command, *files], check=True)
            unfinished.replace(library)
    return ctypes.CDLL(str(library)).run


class TensorMap(ctypes.Structure):
    """`TensorMap` of `emulator.h`."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("sequences", "rows", "columns", "stride", "tile_rows")),
    )


def emulate(monkeypatch: pytest.MonkeyPatch, *options: str, max_threads: int = 1024) -> None:
    """Have the driver run kernels on the CPU, compiled with these options, with at most so many threads a block."""

    def start(kernel: Kernel, blocks: int, pointers: Any) -> None:
        compiled(kernel, min(kernel.threads, max_threads), *options)(blocks, pointers)

    def tensor_map(tiles: TmaTiles) -> Any:
        columns, stride = tiles.matrix.shape[1], tiles.matrix.stride(0) * 2
        return TensorMap(tiles.matrix.data_ptr(), *tiles.sequences(), columns, stride, tiles.rows)

    monkeypatch.setattr(driver, "start", start)
    monkeypatch.setattr(driver, "tensor_map", tensor_map)
