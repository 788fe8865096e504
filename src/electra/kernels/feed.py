"""The products into and out of a feed-forward half's inner width, with the GELU beside them.

On Hopper layers of width 256 get each pair in one kernel, which reads and writes the inner arrays once. Others take the
library's product and a pass of its own, or on the way back the kernel in `down`.

Shapes: T tokens, D width, F inner width, P lines.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from electra.kernels import down, native
from electra.kernels import gelu as gelus
from electra.kernels.native import Boxes, Kernel, aligned, launch

WIDTH, OUTPUTS, TOKENS, GROUPS = 256, 128, 64, 3
"""What the kernels know: the width, the columns that a block keeps the weight of, how many tokens come past a group
at a time, and a block's groups."""
BLOCKS = 132
"""One for each multiprocessor of a large chip."""
_MEMORY = 2 * WIDTH * OUTPUTS + GROUPS * (2 * TOKENS * (WIDTH + OUTPUTS) + 32)
UP = Kernel("up_gelu", ("group", "feed"), _MEMORY, threads=GROUPS * 128, together=1)
DOWN = Kernel("down_backward", ("group", "feed"), _MEMORY, threads=GROUPS * 128, together=1)


def up_gelu(y_TD: Tensor, up_FD: Tensor, bias_F: Tensor, *, inner: Tensor, active: Tensor) -> None:
    """Fill `inner` (T, F) with y · upᵀ + bias, and `active` with its GELU."""
    if not _fits(y_TD, len(up_FD), UP):
        torch.addmm(bias_F, y_TD, up_FD.t(), out=inner)
        gelus.gelu(inner, out=active)
        return
    tiles, lines = _shared(y_TD, len(up_FD))
    y, up, *outputs = Boxes(y_TD, TOKENS), Boxes(aligned(up_FD), OUTPUTS), Boxes(inner, TOKENS), Boxes(active, TOKENS)
    launch(UP, tiles * lines, y, up, bias_F, *outputs, len(y_TD), tiles)


def down_backward(d_down_TD: Tensor, down_DF: Tensor, inner_TF: Tensor, d_inner_TF: Tensor, sums_PF: Tensor) -> None:
    """Fill `d_inner_TF` with the gradient before the GELU, which was given `inner_TF`.

    `sums_PF` gets, line by line, what adds up to the bias gradient.
    """
    columns = down_DF.shape[1]
    if not _fits(d_down_TD, columns, DOWN):
        down.down_backward(d_down_TD, down_DF, inner_TF, d_inner_TF, sums_PF)
        return
    tiles, lines = _shared(d_down_TD, columns)
    matrices = (
        Boxes(d_down_TD, TOKENS),
        Boxes(aligned(down_DF), WIDTH),
        *(Boxes(x, TOKENS) for x in (inner_TF, d_inner_TF)),
    )
    launch(DOWN, tiles * lines, *matrices, sums_PF, len(d_down_TD), columns, tiles)


def lines_of(like_TD: Tensor, columns: int) -> int:
    """How many lines of sums `down_backward` writes."""
    tokens, width = like_TD.shape
    return _shared(like_TD, columns)[1] if _fits(like_TD, columns, DOWN) else down.programs(tokens, width, columns)


def _fits(like_TD: Tensor, columns: int, kernel: Kernel) -> bool:
    return like_TD.shape[1] == WIDTH and columns % OUTPUTS == 0 and native.can_run(like_TD, kernel)


def _shared(like_TD: Tensor, columns: int) -> tuple[int, int]:
    """How many parts the columns have, and how many blocks share the tokens of each."""
    tiles = columns // OUTPUTS
    return tiles, min(triton.cdiv(len(like_TD), TOKENS * GROUPS), max(1, BLOCKS // tiles))
