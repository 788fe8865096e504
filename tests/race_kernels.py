"""Run CUDA kernels on the CPU under the race detector; `test_ops_cuda` reads the log.

python race_kernels.py attention|linear_gelu|"width 64"|"width 256"|"width 256, backward"|linear_cross_entropy
"""

from __future__ import annotations

import sys

import pytest
import torch
from emulated import emulate
from ops_backends import Draw, implementation
from ops_cases import Case, attention_of, mlp_of, stack_of
from test_ops_parity import leaves_of, run

from electra.ops.cuda.linear_cross_entropy import block_log_sum_exp, logits_backward

CASES = {
    "attention": Case("attention", "", attention_of(2, 70, 1, 64, 0.1, 3), {"cuda": {"multiprocessors": 1}}),
    "linear_gelu": Case("linear_gelu", "", mlp_of(400, 256, 128), {"cuda": {"blocks": {"blocks": 1}}}),
    "width 64": Case("encoder_stack", "", stack_of(1, 61, 64, 1, 256, 0.1, 0.1), {"cuda": {"kernels": "width 64"}}),
    "width 256": Case(  # its backward is that of attention and linear_gelu
        "encoder_stack",
        "",
        stack_of(1, 70, 256, 4, 1024, 0.1, 0.1, layers=1),
        {"cuda": {"kernels": "width 256"}},
        gradients=False,
    ),
    "width 256, backward": Case(
        "encoder_stack",
        "",
        stack_of(1, 70, 256, 4, 1024, 0.1, 0.1),
        {"cuda": {"kernels": "width 256, backward"}},
    ),
}
DRAW = Draw(torch.bfloat16, "cpu")


def cross_entropy() -> None:
    x, table, bias = DRAW.numbers(200, 128, seed=1), DRAW.numbers(384, 128, seed=2), DRAW.numbers(384, seed=3)
    few = {"warpgroups": 2, "workers": 2}
    lse = block_log_sum_exp(x, table, bias, **few).logsumexp(1)
    gold = torch.linspace(0, 383, 200).round().long()
    logits_backward(x, table, bias, gold, lse, torch.ones(200), **few)


with pytest.MonkeyPatch.context() as patch:
    # The detector may not know more than 500 threads at once: some kernels' blocks get half.
    fewer = ("-DWARP_PAIRS=4", "-DFORWARD_WARPGROUPS=2", "-DBACKWARD_WARPGROUPS=2")
    emulate(patch, "-fsanitize=thread", "-O1", *fewer, max_threads=256 if sys.argv[1] == "width 64" else 384)
    if sys.argv[1] == "linear_cross_entropy":
        cross_entropy()
    else:
        case = CASES[sys.argv[1]]
        inputs = case.inputs(DRAW)
        run(implementation(case.op, "cuda"), {**inputs, **case.options["cuda"]}, leaves_of(case, inputs))
print("done")
