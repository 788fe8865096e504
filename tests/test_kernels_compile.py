"""The kernels of a training step compile for a real GPU and fit into it: what the interpreter cannot tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="fused kernels need triton")

SHARED_MEMORY = 227 * 1024
"""What one program may have of an H100's or H200's multiprocessor."""


@pytest.mark.parametrize(
    ("preset", "length", "expected"),
    [
        (
            "small",
            128,
            {"_narrow_forward", "_attention_forward", "_attention_backward", "_adamw", "_vocabulary_backward"},
        ),
        ("base", 512, {"_flash_forward", "_flash_backward_keys", "_flash_backward_queries", "_embed_backward"}),
    ],
)
def test_every_kernel_of_a_step_compiles(preset: str, length: int, expected: set[str]) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, preset, str(length)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = [line.split() for line in done.stdout.splitlines()]
    assert expected <= {name for name, _, _ in made}
    assert all(int(shared) <= SHARED_MEMORY for _, _, shared in made)
