"""The kernels of a training step compile for real GPUs and fit into them: what the interpreter cannot tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="fused kernels need triton")

SHARED_MEMORY = {86: 99 * 1024, 90: 227 * 1024}
"""What one program may have of a multiprocessor: a desktop's GPU, an H100 or H200."""


@pytest.mark.parametrize(
    ("architecture", "arguments", "expected"),
    [
        (
            90,
            ("small",),
            {"_attention_backward", "_down_backward", "_adamw", "_finish", "_mix_all"}
            | {
                "_gelu_backward",
                "_score_forward",
                "_score_backward",
                "_sum_lines",
                "_states_forward",
                "_states_backward",
            }
            | {"_choose", "_show", "_replace", "_gold_and_keys", "_take_apart", "_sum_used", "_detect"},
        ),
        (90, ("base",), {"_flash_forward", "_flash_backward_keys", "_flash_backward_queries", "_embed_backward"}),
        (86, ("small",), {"_attention_forward", "_attention_backward", "_down_backward", "_vocabulary_backward"}),
        (86, ("small", "data.length=256"), {"_flash_backward_keys"}),
        (90, ("small", "data.layout=packed"), {"_flash_forward", "_flash_backward_keys", "_flash_backward_queries"}),
        (90, ("small", "data.length=12"), {"_choose", "_detect"}),  # one slot a text
    ],
)
def test_every_kernel_of_a_step_compiles_and_fits(
    architecture: int, arguments: tuple[str, ...], expected: set[str]
) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, script, str(architecture), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    made = [line.split() for line in done.stdout.splitlines()]
    assert expected <= {name for name, _, _ in made}
    too_large = [name for name, _, shared in made if int(shared) > SHARED_MEMORY[architecture]]
    assert not too_large
