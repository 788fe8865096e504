"""The way back through the second product of a feed-forward half and the GELU before it.

Layers of some widths get both in one kernel, which writes the inner gradient once instead of writing it, reading it and
writing it again; others take the library's product and a pass of its own.

Shapes: T tokens, D width, F inner width, M by N a program's tile, P rows of tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.kernels import gelu as gelus
from electra.kernels.gelu import slope_of
from electra.kernels.hashing import precision

NARROWEST, WIDEST = 128, 256
"""Widths for which one kernel is faster; below there is too little to do, above the library's product is too good."""
ROWS = COLUMNS = 128
DEEP = 128
"""Bytes of a row that a product takes at a time."""
WARPS, REGISTERS = 8, 128
"""Two programs then share a multiprocessor: while one multiplies, the other writes."""


@triton.jit
def _down_backward(  # type: ignore[no-untyped-def]
    d_down, down, inner, d_inner, sums, width, columns,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, N)
    line = tl.program_id(0) // tiles
    m = line * M
    n = tl.program_id(0) % tiles * N
    du = tl.zeros([M, N], tl.float32)
    for k in tl.range(0, width, K, num_stages=2):
        du = tl.dot(d_down.load([m, k]), down.load([k, n]), du, input_precision=PRECISION)
    x = inner.load([m, n]).to(tl.float32)
    kind: tl.constexpr = inner.dtype
    du = du * slope_of(x, kind)
    d_inner.store([m, n], du.to(kind))
    columns_N = n + tl.arange(0, N)
    # Rows past the end have no gradient.
    tl.store(sums + line.to(tl.int64) * columns + columns_N, tl.sum(du, 0), columns_N < columns)


def programs(tokens: int, width: int, columns: int) -> int:
    """How many lines of sums `down_backward` writes."""
    lines: int = triton.cdiv(tokens, ROWS) if _fits(width, columns) else gelus.programs(tokens)
    return lines


def down_backward(d_down_TD: Tensor, down_DF: Tensor, inner_TF: Tensor, d_inner_TF: Tensor, sums_PF: Tensor) -> None:
    """Fill `d_inner_TF` with the gradient before the GELU, which was given `inner_TF`.

    `sums_PF` gets, line by line, what adds up to the bias gradient.
    """
    width, columns = down_DF.shape
    if not _fits(width, columns):
        torch.mm(d_down_TD, down_DF, out=d_inner_TF)
        gelus.gelu_backward(inner_TF, d_inner_TF, sums_PF)
        return
    if down_DF.data_ptr() % 16:  # a weight lies behind others of any size in one buffer
        down_DF = down_DF.clone()
    deep = DEEP // d_down_TD.element_size()
    _down_backward[(len(sums_PF) * triton.cdiv(columns, COLUMNS),)](
        TensorDescriptor.from_tensor(d_down_TD, [ROWS, deep]),
        TensorDescriptor.from_tensor(down_DF, [deep, COLUMNS]),
        TensorDescriptor.from_tensor(inner_TF, [ROWS, COLUMNS]),
        TensorDescriptor.from_tensor(d_inner_TF, [ROWS, COLUMNS]),
        sums_PF, width, columns,
        M=ROWS, N=COLUMNS, K=deep, PRECISION=precision(d_down_TD.dtype),
        num_warps=WARPS, maxnreg=REGISTERS,
    )  # fmt: skip


def _fits(width: int, columns: int) -> bool:
    # Rows begin at multiples of 16 bytes.
    return NARROWEST <= width <= WIDEST and width % 8 == columns % 8 == 0
