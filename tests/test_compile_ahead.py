"""CUDA sources compiled beside the rest of a start: all at once, each once, and a launch waits for its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from electra.ops import compile_ahead as ahead
from electra.ops.compile_ahead import compile_sources
from electra.ops.cuda import compiler
from electra.ops.cuda.compiler import SOURCES, Kernel, compile_ahead, compile_source, machine_code, source_of

FILES = sorted(path.stem for path in SOURCES.glob("*.cu"))
GPU = torch.device("cuda", 0)
TARGET = ("sm_90a", "13.0")
needs_nvrtc = pytest.mark.skipif(bool(compiler.missing()), reason="needs the CUDA runtime compiler (libnvrtc)")


def kernel_of(file: str) -> Kernel:
    return Kernel(file, file, 0)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Hopper GPU on which nothing has been compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_compiling", {})
    monkeypatch.setattr(compiler, "_target", lambda device: TARGET)
    return tmp_path


@needs_nvrtc
def test_every_source_compiles_to_the_code_that_is_kept(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ahead(GPU)
    ahead = {file: machine_code(kernel_of(file), GPU) for file in FILES}
    monkeypatch.setattr(compiler, "_compiling", {})
    assert ahead == {file: machine_code(kernel_of(file), GPU) for file in FILES}, "as the next start reads it"
    assert ahead[FILES[0]] == compile_source(FILES[0], TARGET[0])


def test_all_sources_compile_at_once_and_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, asked = threading.Barrier(len(FILES), timeout=60), []

    def compiled(file: str, architecture: str) -> bytes:
        asked.append(file)
        together.wait()  # passes only when all are being compiled
        return f"{architecture} {source_of(file)}".encode()

    monkeypatch.setattr(compiler, "compile_source", compiled)
    compile_ahead(GPU)
    compile_ahead(GPU)
    codes = {file: machine_code(kernel_of(file), GPU) for file in FILES}
    assert codes == {file: f"sm_90a {source_of(file)}".encode() for file in FILES}
    assert sorted(asked) == FILES

    monkeypatch.setattr(compiler, "_compiling", {})  # the next start
    compile_ahead(GPU)
    assert {file: machine_code(kernel_of(file), GPU) for file in FILES} == codes and len(asked) == len(FILES)


def test_a_source_that_does_not_compile_is_named_by_its_launch(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FILES[0]

    def compiled(file: str, architecture: str) -> bytes:
        if file == broken:
            raise RuntimeError(f"{file}.cu does not compile for {architecture}")
        return b"code"

    monkeypatch.setattr(compiler, "compile_source", compiled)
    compile_ahead(GPU)
    assert machine_code(kernel_of(FILES[1]), GPU) == b"code"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"{broken}\.cu does not compile for sm_90a"):
            machine_code(kernel_of(broken), GPU)


def test_only_a_step_that_may_run_them_compiles_them(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(compiler, "compile_source", lambda file, architecture: asked.append(file) or b"code")
    compile_sources(device=torch.device("cpu"), dtype=torch.bfloat16)
    monkeypatch.setattr(ahead, "cuda_missing", lambda device: "")
    compile_sources("plain", device=GPU, dtype=torch.bfloat16)
    compile_sources(device=GPU, dtype=torch.float32)
    assert not asked
    compile_sources(device=GPU, dtype=torch.bfloat16)
    assert {machine_code(kernel_of(file), GPU) for file in FILES} == {b"code"} and sorted(asked) == FILES
