"""A distribution over the vocabulary whose logits never lie in memory on the way there: embeddings of 128, on Hopper.

There, of each row and each block of 128 entries only the total is written. Back, logits are made anew, and their
gradient is multiplied with the table where it is made. `vocabulary` takes losses, samples and gradients from these.

Shapes: M rows, E embedding size, W vocabulary in whole blocks, K blocks, P lines of sums, J parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import native
from electra.kernels.native import TILE, Boxes, Kernel, aligned, launch

SIZE, BLOCK = 128, 128
"""What the kernels know: the embedding size, and the entries that a block of threads compares with rows at a time."""
THERE, BACK = 4, 3
"""How many times 64 rows that are."""
FEWEST_ROWS = 512
"""With fewer, the library's products waste less."""
_STAGE, _OWN = 2 * TILE + 2048, TILE
"""Bytes of a block of entries with their biases, and of 64 rows."""
FORWARD = Kernel(
    "judge_forward", ("group", "heads", "judge"), THERE * _OWN + 4 * _STAGE + 128, threads=THERE * 128 + 32, together=1
)
BACKWARD = Kernel(
    "judge_backward", ("group", "heads", "judge"), BACK * (2 * _OWN + 4096) + 3 * _STAGE + 1024,
    threads=(BACK + 1) * 128, together=1,
)  # fmt: skip


@triton.jit
def _add_parts(parts, out, rows, most, each, blocks, R: tl.constexpr, TILE: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    tile = tl.program_id(0) * R // TILE
    first, last = tile * blocks // each, ((tile + 1) * blocks - 1) // each
    place = row_R[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.zeros([R, N], tl.float32)
    for part in range(last - first + 1):
        total += tl.load(parts + part * most * N + place)
    tl.store(out + place, total.to(out.dtype.element_ty), (row_R < rows)[:, None])


def fits(x_ME: Tensor) -> bool:
    """Whether the kernels know such rows, and have enough of them."""
    rows, size = x_ME.shape
    return size == SIZE and rows >= FEWEST_ROWS and all(native.can_run(x_ME, one) for one in (FORWARD, BACKWARD))


def block_totals(x_ME: Tensor, table_WE: Tensor, bias_W: Tensor) -> Tensor:
    """(M, K) of each row and each block of entries the logarithm of the sum of their exponentials."""
    rows, blocks = len(x_ME), len(table_WE) // BLOCK
    totals_MK = torch.empty(rows, blocks, dtype=torch.float32, device=x_ME.device)
    items, each = _shared(x_ME, blocks, THERE)
    launch(
        FORWARD, triton.cdiv(items, each), *_boxes(x_ME, table_WE, bias_W, THERE), totals_MK, rows, items, each, blocks
    )  # fmt: skip
    return totals_MK


def go_back(
    x_ME: Tensor, table_WE: Tensor, bias_W: Tensor, gold_M: Tensor, level_M: Tensor, d_loss_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(M, W) the gradient of the logits, (M, E) that of `x_ME`, and (P, W) lines that add up to the bias's.

    `level_M` are the logarithms of the rows' totals.
    """
    rows, blocks, device = len(x_ME), len(table_WE) // BLOCK, x_ME.device
    items, each = _shared(x_ME, blocks, BACK)
    most = items // blocks * BACK * 64
    d_logits_MW = torch.empty(rows, len(table_WE), dtype=x_ME.dtype, device=device)
    parts_JME = torch.empty(triton.cdiv(blocks, each) + 1, most, SIZE, dtype=torch.float32, device=device)
    lines_PW = torch.empty(most // 64, len(table_WE), dtype=torch.float32, device=device)
    launch(
        BACKWARD, triton.cdiv(items, each), *_boxes(x_ME, table_WE, bias_W, BACK), Boxes(d_logits_MW, 64), gold_M,
        level_M, d_loss_M, parts_JME, lines_PW, rows, items, each, blocks, most,
    )  # fmt: skip
    d_x_ME = torch.empty_like(x_ME)
    _add_parts[(most // 2,)](parts_JME, d_x_ME, rows, most, each, blocks, R=2, TILE=BACK * 64, N=SIZE, num_warps=1)
    return d_logits_MW, d_x_ME, lines_PW


def _shared(x_ME: Tensor, blocks: int, groups: int) -> tuple[int, int]:
    """How many pieces of work there are, and how many of them a block of threads takes."""
    items = triton.cdiv(len(x_ME), groups * 64) * blocks
    return items, triton.cdiv(items, native.processors(x_ME.device))


def _boxes(x_ME: Tensor, table_WE: Tensor, bias_W: Tensor, groups: int) -> tuple[Boxes, Boxes, Boxes]:
    return Boxes(aligned(x_ME), groups * 64), Boxes(aligned(table_WE), BLOCK), Boxes(aligned(bias_W)[None], 1)
