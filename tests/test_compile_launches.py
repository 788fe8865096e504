"""A step's Triton kernels compiled side by side before its first launch: each kind once, and nothing is changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels are written in Triton")

from triton.runtime.jit import JITFunction

from electra.ops.compile_ahead import launches_compile
from electra.ops.cuda import driver
from electra.ops.cuda.compiler import Kernel
from electra.ops.triton import compiling
from electra.ops.triton.compiling import launches_compiled

CPU = torch.device("cpu")


def add(x, y, count, BLOCK):  # type: ignore[no-untyped-def]
    """What a kernel looks like; never compiled here."""


def multiply(x, y, count, BLOCK):  # type: ignore[no-untyped-def]
    """Another."""


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for Triton's own first part, which needs a GPU; it is done already."""
    begun: Future[None] = Future()
    begun.set_result(None)
    monkeypatch.setattr(compiling, "begin", lambda device: begun)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_kernels_compile_together_and_each_kind_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together, asked, loaded = threading.Barrier(4, timeout=60), [], []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        asked.append((kernel.fn.__name__, arguments[0].dtype, arguments[2], named, warmup))
        together.wait()  # passes only when all four are being compiled

        class Made:
            @property
            def run(self) -> None:
                loaded.append(kernel)

        return Made()

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    sums, products = JITFunction(add), JITFunction(multiply)
    x = torch.ones(64)
    with launches_compiled(CPU):
        for _ in range(3):
            sums[(1,)](x, x, 64, BLOCK=16, num_warps=4)
            sums[(9,)](x + 1, x, 128, BLOCK=16, num_warps=4)  # other values: no other code
        sums[(1,)](x.bfloat16(), x, 64, BLOCK=16, num_warps=4)
        sums[(1,)](x, x, 65, BLOCK=16, num_warps=4)
        products[(1,)](x, x, 64, BLOCK=16, num_warps=4)
    options = {"BLOCK": 16, "num_warps": 4}
    assert sorted(asked, key=str) == sorted(
        [
            ("add", torch.float32, 64, options, True),
            ("add", torch.bfloat16, 64, options, True),
            ("add", torch.float32, 65, options, True),
            ("multiply", torch.float32, 64, options, True),
        ],
        key=str,
    )
    assert len(loaded) == 4, "launchers are made beside one another as well"
    assert JITFunction.run is run


def test_nothing_compiles_before_triton_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, begun = [], Future[None]()
    monkeypatch.setattr(compiling, "begin", lambda device: begun)
    monkeypatch.setattr(JITFunction, "run", lambda *arguments, **named: asked.append(named) or SimpleNamespace(run=0))
    with launches_compiled(CPU):
        JITFunction(add)[(1,)](torch.ones(1), torch.ones(1), 1, BLOCK=1)
        threading.Event().wait(0.05)
        assert not asked
        begun.set_exception(RuntimeError("no compiler"))  # each launch then says so itself
    assert len(asked) == 1


def test_addresses_that_are_no_multiple_of_16_are_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run(kernel: Any, x: Any, *others: Any, **named: Any) -> Any:
        asked.append(x.data_ptr() % 16)
        return SimpleNamespace(run=None)

    monkeypatch.setattr(JITFunction, "run", run)
    kernel, x = JITFunction(add), torch.ones(64)
    with launches_compiled(CPU):
        for part in (x, x[4:], x[8:], x[1:], x[5:]):
            kernel[(1,)](part, x, 64, BLOCK=16)
    assert sorted(asked) == [0, 4]


def test_what_a_kernel_would_fill_is_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JITFunction, "run", lambda *arguments, **named: SimpleNamespace(run=None))
    used = torch.full((1 << 16,), 7.0)
    del used  # its memory is what an unfilled tensor gets
    with launches_compiled(CPU):
        made = [torch.empty(1 << 16), torch.empty_like(torch.ones(1 << 16)), torch.ones(3).new_empty(1 << 16)]
        made.append(torch.empty_strided((1 << 8, 1 << 8), (1, 1 << 8)))
    assert not any(one.any() for one in made)


def test_an_error_ends_the_block_and_leaves_launches_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("does not compile")

    monkeypatch.setattr(JITFunction, "run", run)
    with launches_compiled(CPU):
        JITFunction(add)[(1,)](torch.ones(1), torch.ones(1), 1, BLOCK=1)  # its own launch says so
    with pytest.raises(ZeroDivisionError), launches_compiled(CPU):
        raise ZeroDivisionError
    assert JITFunction.run is run


def test_no_cuda_kernel_starts_meanwhile_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(driver, "start", lambda kernel, blocks, pointers: started.append(kernel.name))
    kernel = Kernel("add", "add", 0)
    with driver.without_launches():
        driver.launch(kernel, 1)
        thread = threading.Thread(target=driver.launch, args=(kernel, 1))
        thread.start()
        thread.join()
    assert not started
    driver.launch(kernel, 1)
    assert started == ["add"]


def test_only_a_gpu_with_its_own_kernels_compiles_them() -> None:
    assert not launches_compile(device=CPU)
    assert not launches_compile("plain", device=torch.device("cuda", 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_after_it_a_step_and_an_evaluation_compile_nothing_and_compute_the_same(tmp_path: Path) -> None:
    script = Path(__file__).with_name("first_steps.py")
    bare = {
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path]),
    }
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | bare
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
