"""The losses of a run that no change of code may move: promise 2's golden file.

`python tests/test_golden_losses.py > tests/golden/losses_debug_cpu.txt` writes it, for a change that must move them.

It holds losses and grad norms of 12 steps, as hexadecimal floats, by the reference ops in fp32 on one thread. On one
machine two runs agree bit by bit; CPUs with other vector units round sums otherwise. With the instruction sets SSE 4.2,
AVX2 and AVX-512 of one CPU the figures differ by 1.8e-7, relative; on an Arm CPU losses by 9e-7, grad norms by 2.2e-5.
The test allows 1e-5, for libraries not measured; on other CPUs than x86, 1e-4 for grad norms.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from electra.config.load import load
from electra.pretrain import pretrain
from electra.progress import quiet
from electra.train.metrics_file import read_lines

GOLDEN = Path(__file__).parent / "golden"
FILE = GOLDEN / "losses_debug_cpu.txt"
CONFIG = (
    "model.layers=2", "model.width=64", "model.heads=2", "model.ffn=128", "model.embedding=32", "model.positions=32",
    "generator.width=0.5", "data.length=32", "train.steps=12", "train.batch_size=8", "train.log_every=1",
    "train.device=cpu", "train.precision=fp32", "train.kernels=plain", "optim.warmup_steps=3", "evaluate.sequences=8",
    "evaluate.every=0", "checkpoint.every=12",
)  # fmt: skip
KEYS = ("train/loss", "train/mlm_loss", "train/rtd_loss", "optim/grad_norm")
RELATIVE = 1e-5
GRAD_NORM = RELATIVE if platform.machine() in ("x86_64", "AMD64") else 1e-4


def measured(out: Path) -> list[list[float]]:
    """Losses and grad norm of every step of the run."""
    assert torch.get_num_threads() == 1, "set OMP_NUM_THREADS=1"
    pretrain(load("tiny", overrides=CONFIG), data=GOLDEN / "0.2.0" / "data", out=out)
    lines = [line for line in read_lines(out / "metrics.jsonl") if line["kind"] == "train"]
    return [[line[key] for key in KEYS] for line in lines]


def read(path: Path) -> list[list[float]]:
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return [[float.fromhex(text) for text in line[1:]] for line in lines]


def test_promise_02_losses_do_not_move(tmp_path: Path) -> None:
    golden, found = read(FILE), measured(tmp_path / "run")
    assert len(golden) == len(found) == 12
    for step, (before, now) in enumerate(zip(golden, found, strict=True), 1):
        shown = f"step {step}: {dict(zip(KEYS, now, strict=True))}"
        assert now[:3] == pytest.approx(before[:3], rel=RELATIVE), shown
        assert now[3] == pytest.approx(before[3], rel=GRAD_NORM), shown


def test_a_run_of_another_seed_would_be_noticed(tmp_path: Path) -> None:
    """The tolerance tells runs apart: what one step changes is far above it."""
    golden = read(FILE)
    for before, after in zip(golden, golden[1:], strict=False):
        assert after != pytest.approx(before, rel=100 * RELATIVE)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, quiet():
        rows = measured(Path(folder) / "run")
    print(f"# step {' '.join(KEYS)}")
    for step, row in enumerate(rows, 1):
        print(step, *(value.hex() for value in row))


if __name__ == "__main__":
    sys.exit(main())
