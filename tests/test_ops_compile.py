"""The Triton kernels of a training step compile for real GPUs and fit into them: what the interpreter cannot tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels are written in Triton")

SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Of one program: on an A100, on desktops' GPUs (RTX 30 and 40), on an H100 or H200."""
ANY_GPU = {
    "attention._forward_kernel", "attention._backward_kernel", "adamw._adamw_kernel", "fold_keys._fold_kernel",
    "gelu_mlp._backward_kernel",
    "rtd_logits._forward_kernel", "rtd_logits._backward_kernel", "partial_sums._sum_kernel",
    "linear_gelu_norm._forward_kernel", "linear_gelu_norm._backward_kernel", "embeddings._backward_kernel",
    "add_dropout_norm._backward_kernel", "choose_masked._choose_kernel", "apply_mask._mask_kernel",
    "replace_tokens._replace_kernel", "masked_targets._targets_kernel", "split_rows._split_kernel",
    "count_targets._count_kernel", "masked_sum._sum_kernel", "joint_loss._joint_kernel", "rtd_loss._loss_kernel",
    "grad_norm._squares_kernel", "grad_norm._norm_kernel", "add_totals._add_kernel",
}  # fmt: skip
STEP = ANY_GPU | {"linear_cross_entropy._backward_kernel"}
HOPPER = ANY_GPU | {"linear_cross_entropy._finish_kernel", "linear_cross_entropy._add_parts_kernel"}
"""Beside the cross-entropy in CUDA, which only Hopper runs."""
LONG = {f"attention_long.{name}_kernel" for name in ("_forward", "_backward_keys", "_backward_queries")}


def soak(*case: Any) -> Any:
    """A case that `make soak` compiles."""
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "arguments", "expected"),
    [
        (80, ("small",), STEP),
        (89, ("small",), STEP),
        (90, ("small",), HOPPER),
        (89, ("small", "data.length=256"), LONG),
        soak(80, ("base",), LONG),
        soak(86, ("small",), STEP),
        soak(89, ("base",), LONG),
        soak(90, ("base",), LONG),
        soak(90, ("small", "data.layout=packed"), LONG),
        soak(90, ("small", "data.length=12"), {"choose_masked._choose_kernel"}),  # one masked position a sequence
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_every_kernel_of_a_step_compiles_and_fits(
    architecture: int, arguments: tuple[str, ...], expected: set[str]
) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parent), *sys.path])
    command = [sys.executable, script, str(architecture), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    made = [line.split() for line in done.stdout.splitlines()]
    assert expected <= {name for name, _ in made}, sorted(expected - {name for name, _ in made})
    assert not [name for name, shared in made if int(shared) > SHARED_BYTES[architecture]]
