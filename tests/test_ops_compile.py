"""The Triton kernels of a training step compile for real GPUs and fit into them: what the interpreter cannot tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


CASES: list[tuple[int, tuple[str, ...], set[str]]] = [
    (80, ("small",), STEP),
    (89, ("small",), STEP),
    (90, ("small",), HOPPER),
    (89, ("small", "data.length=256"), LONG),
    (90, ("small", "data.length=256", "data.layout=packed"), LONG),
]


def compiled(*cases: tuple[int, tuple[str, ...]]) -> list[list[tuple[str, int]]]:
    """The kernels of each case, with the shared memory that a program of it takes."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parent), *sys.path])
    command = [sys.executable, str(script), *(f"{architecture} {' '.join(given)}" for architecture, given in cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    return [
        [(name, int(shared)) for case, name, shared in lines if int(case) == number] for number in range(len(cases))
    ]


@pytest.fixture(scope="module")
def together() -> list[list[tuple[str, int]]]:
    """What the cases of every run of the tests compile, in one process."""
    return compiled(*(case[:2] for case in CASES))


def check(architecture: int, made: list[tuple[str, int]], expected: set[str]) -> None:
    assert expected <= {name for name, _ in made}, sorted(expected - {name for name, _ in made})
    assert not [name for name, shared in made if shared > SHARED_BYTES[architecture]]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: "-".join((str(CASES[n][0]), *CASES[n][1])))
def test_every_kernel_of_a_step_compiles_and_fits(number: int, together: list[list[tuple[str, int]]]) -> None:
    architecture, _, expected = CASES[number]
    check(architecture, together[number], expected)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("architecture", "arguments", "expected"),
    [
        (80, ("base",), LONG),
        (86, ("small",), STEP),
        (89, ("base",), LONG),
        (90, ("base",), LONG),
        (90, ("small", "data.length=12"), {"choose_masked._choose_kernel"}),  # one masked position a sequence
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_other_steps_compile_and_fit(architecture: int, arguments: tuple[str, ...], expected: set[str]) -> None:
    check(architecture, *compiled((architecture, arguments)), expected)
