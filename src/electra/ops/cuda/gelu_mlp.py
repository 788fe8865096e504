"""gelu(x · weightᵀ + bias) for width 256, forward and backward in one kernel each, in bf16: TMA tiles and wgmma.

A block keeps 128 columns of the weight in shared memory and streams tokens past them, so the inner arrays are read and
written once. The source is `gelu_mlp.cu`. Reference: `reference/linear_gelu.py`.

Shapes: T tokens, D width, F inner width, P rows of partial sums.
"""

from __future__ import annotations

from torch import Tensor

from electra.ops.cuda.compiler import Kernel
from electra.ops.cuda.driver import MULTIPROCESSORS, TmaTiles, aligned, launch

WIDTH, COLUMNS, TOKENS, WARPGROUPS = 256, 128, 64, 3
"""What the kernels know: the width, the columns of a block, the tokens of a warpgroup at a time, and a block's
warpgroups."""
_SHARED_BYTES = 2 * WIDTH * COLUMNS + WARPGROUPS * (2 * TOKENS * (WIDTH + COLUMNS) + 32)
_BLOCK = {"threads": WARPGROUPS * 128, "blocks_per_multiprocessor": 1}
UP_FORWARD = Kernel("gelu_mlp_up_forward", "gelu_mlp", _SHARED_BYTES, **_BLOCK)
DOWN_BACKWARD = Kernel("gelu_mlp_down_backward", "gelu_mlp", _SHARED_BYTES, **_BLOCK)


def linear_gelu_forward(
    x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor, *, preact: Tensor, act: Tensor, blocks: int = MULTIPROCESSORS
) -> None:
    """Fill `preact` (T, F) with x · weightᵀ + bias, and `act` with its GELU."""
    tiles, rows = _grid(len(x_TD), len(weight_FD), blocks)
    x, weight = TmaTiles(x_TD, TOKENS), TmaTiles(aligned(weight_FD), COLUMNS)
    outputs = TmaTiles(preact, TOKENS), TmaTiles(act, TOKENS)
    launch(UP_FORWARD, tiles * rows, x, weight, bias_F, *outputs, len(x_TD), tiles)


def gelu_rows(sequences: int, tokens: int, ffn: int, *, blocks: int = MULTIPROCESSORS) -> int:
    """How many rows of partial sums `linear_gelu_backward` writes."""
    return _grid(tokens, ffn, blocks)[1]


def linear_gelu_backward(
    gradient_TD: Tensor, down_DF: Tensor, preact_TF: Tensor, *, d_preact: Tensor, sums: Tensor,
    blocks: int = MULTIPROCESSORS,
) -> None:  # fmt: skip
    """Fill `d_preact` (T, F) with (gradient · down) · gelu'(preact), where `gradient_TD` is that of act · downᵀ.

    (P, F) `sums` get partial sums of the bias gradient.
    """
    columns = down_DF.shape[1]
    tiles, rows = _grid(len(gradient_TD), columns, blocks)
    matrices = (
        TmaTiles(gradient_TD, TOKENS),
        TmaTiles(aligned(down_DF), WIDTH),
        TmaTiles(preact_TF, TOKENS),
        TmaTiles(d_preact, TOKENS),
    )
    launch(DOWN_BACKWARD, tiles * rows, *matrices, sums, len(gradient_TD), columns, tiles)


def _grid(tokens: int, columns: int, blocks: int) -> tuple[int, int]:
    """How many tiles the columns have, and how many of the blocks share the tokens of each."""
    tiles = columns // COLUMNS
    return tiles, min(-(-tokens // (TOKENS * WARPGROUPS)), max(1, blocks // tiles))
