"""CUDA kernels beyond their numbers: they wait, fit into registers, race with nobody, and share work in any way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from emulated import compiler, needs_compiler
from ops_backends import GPU, GPU_MARK, Draw, close, exact, implementation, prepare
from ops_cases import stack_of

from electra.compiled_cache import cache_path, read_code, write_code
from electra.ops import NEVER
from electra.ops.cuda import attention, encoder_width64, encoder_width256, gelu_mlp
from electra.ops.cuda import linear_cross_entropy as cross_entropy
from electra.ops.cuda.compiler import SOURCES, Kernel, source_of

pytestmark = GPU_MARK
KERNELS = (
    attention.FORWARD, attention.BACKWARD, encoder_width64.FORWARD, encoder_width64.BACKWARD, gelu_mlp.UP_FORWARD,
    gelu_mlp.DOWN_BACKWARD, encoder_width256.FORWARD, encoder_width256.BACKWARD, cross_entropy.FORWARD,
    cross_entropy.BACKWARD,
)  # fmt: skip
HERE = Draw(torch.bfloat16, "cuda" if GPU else "cpu")
MORE_RACES = ("linear_gelu", "width 64", "width 256", "width 256, backward", "linear_cross_entropy")
"""Beside attention, which `make test` runs; `make soak` runs them all."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_wait_for_the_one_before(kernel: Kernel) -> None:
    """They are launched while it ends: one that does not wait would read what is not written yet."""
    source = (SOURCES / f"{kernel.file}.cu").read_text(encoding="utf-8")
    assert f"{kernel.name}(" in source and "wait_for_previous_kernel();" in source


def ptxas_log(source: str) -> str:
    """What the assembler says of a source that compiles; kept between runs, for this source and this compiler."""
    command = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    kept = cache_path("ptxas", "\n".join((version, *command, source)), ".log")
    if (found := read_code(kept)) is not None:
        return found.decode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cu").write_text(source, encoding="utf-8")
        files = ["-o", "kernel.cubin", "kernel.cu"]
        done = subprocess.run([*command, *files], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    write_code(kept, done.stderr.encode())
    return done.stderr


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_kernels_compile_into_registers(kernel: Kernel) -> None:
    """Blocks share a multiprocessor and its registers, and next to nothing spills."""
    said = ptxas_log(source_of(kernel.file))
    log = said.partition(f"Compiling entry function '{kernel.name}'")[2]  # a source may have several
    registers = re.search(r"Used (\d+) registers", log)
    blocks = kernel.blocks_per_multiprocessor
    assert registers is not None and blocks * kernel.threads * int(registers[1]) <= 2**16
    assert blocks * (kernel.shared_bytes + 1024) <= 228 * 1024
    spilled = re.search(r"(\d+) bytes spill stores", log)
    stack = re.search(r"(\d+) bytes stack frame", log)
    assert spilled is not None and stack is not None and int(spilled[1]) <= 64
    assert int(stack[1]) <= 2 * int(spilled[1]) + 8  # no array lives there
    assert "serialized" not in said  # wgmma that wait for one another


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or GPU, reason="of the emulated kernels, on Linux")
@pytest.mark.parametrize("op", ["attention", *(pytest.param(op, marks=pytest.mark.soak) for op in MORE_RACES)])
def test_no_thread_reads_what_another_writes_at_the_same_time(op: str) -> None:
    """Under the compiler's race detector, which must not load late and knows some thousand threads: in processes."""
    library = subprocess.run(
        [compiler(), "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_file():
        pytest.skip("needs libtsan")
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *sys.path])
    done = subprocess.run(
        [sys.executable, str(here / "race_kernels.py"), op],
        env={**os.environ, "LD_PRELOAD": library, "PYTHONPATH": paths, "TSAN_OPTIONS": "exitcode=66"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0 and done.stdout.strip() == "done", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("rows", "blocks", "workers", "scale"), [(300, 3, 4, 1.0), (70, 7, 3, 40.0), (257, 2, 1, 1.0), (1, 1, 132, 0.1)]
)
def test_cross_entropy_shares_work_in_any_way(
    rows: int, blocks: int, workers: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of threads with many rows, and rows with many of them; logits whose exponentials overflow."""
    prepare("cuda", monkeypatch)
    x, table = HERE.numbers(rows, 128, seed=1), HERE.numbers(blocks * 128, 128, seed=2, scale=0.3 * scale)
    bias = HERE.numbers(blocks * 128, seed=3)
    bias[-40:] = NEVER
    logits = exact(x) @ exact(table).T + exact(bias)
    close(
        cross_entropy.block_log_sum_exp(x, table, bias, workers=workers),
        logits.unflatten(1, (blocks, 128)).logsumexp(2),
        2e-6,
    )
    lse = logits.logsumexp(1)
    gold = torch.linspace(0, blocks * 128 - 41, rows).round().long()
    weights = torch.linspace(-1, 2, rows)
    want = (logits - lse[:, None]).exp()
    want[torch.arange(rows), gold] -= 1
    want *= weights.double()[:, None]
    others = (tensor.to(HERE.device) for tensor in (gold, lse.float(), weights))
    d_logits, d_x, sums = cross_entropy.logits_backward(x, table, bias, *others, workers=workers)
    close(d_logits, want, 2.0**-8)
    close(d_x, exact(d_logits) @ exact(table), 2 * 2.0**-8)
    close(sums.sum(0), want.sum(0), 1e-4)


def test_the_key_bias_of_width_64_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to all keys changes no softmax."""
    prepare("cuda", monkeypatch)
    inputs = stack_of(1, 17, 64, 1, 256, 0.1, 0.1, layers=1)(HERE)
    bias = inputs["layers"][0][1].requires_grad_()
    implementation("encoder_stack", "cuda")(**inputs, kernels="width 64").float().sum().backward()
    assert bias.grad is not None and bias.grad[:64].any() and not bias.grad[64:128].any()
