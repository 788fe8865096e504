"""Sums over rows: partial sums that programs wrote a row each of, and what a bias gradient adds up of every token.

out[k] = Σ_p rows[k, p], in fp32, for several arrays by a single launch; each program takes 32 columns of one array.

Shapes: K groups, P rows, N columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_ROWS, _COLUMNS = 512, 32
"""At a time: all that a program reads should be in flight at once, since few programs share the work."""
_ELEMENTS = 1024
"""Of a warp: 32 a thread."""


@triton.jit
def _sum_one(  # type: ignore[no-untyped-def]
    rows, out, program, count, width, group_stride, row_stride, out_stride, R: tl.constexpr, C: tl.constexpr
):
    parts = tl.cdiv(width, C)
    group = (program // parts).to(tl.int64)
    columns_C = (program % parts) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for first in range(0, count, R):
        rows_R = first + tl.arange(0, R)
        inside = (rows_R < count)[:, None] & (columns_C < width)[None, :]
        offset = group * group_stride + rows_R.to(tl.int64)[:, None] * row_stride + columns_C[None, :]
        total_RC += tl.load(rows + offset, inside, 0.0).to(tl.float32)
    total_C = tl.sum(total_RC, 0)
    tl.store(out + group * out_stride + columns_C, total_C.to(out.dtype.element_ty), columns_C < width)


@triton.jit
def _sum_kernel(  # type: ignore[no-untyped-def]
    rows,  # arrays of (K, P, N)
    outs,  # as many of (K, N)
    ends,  # the program after the last of each array
    counts, widths,  # P and N of each
    group_strides, row_strides, out_strides, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = 0
    for array in tl.static_range(len(rows)):
        if (program >= first) & (program < ends[array]):
            _sum_one(
                rows[array], outs[array], program - first, counts[array], widths[array], group_strides[array],
                row_strides[array], out_strides[array], R, C,
            )  # fmt: skip
        first = ends[array]


def sum_into(*arrays: tuple[Tensor, Tensor]) -> None:
    """Fill (K, N) outs with the sums over each group's rows: pairs of (K, P, N) rows and out, by a single launch."""
    rows = tuple(rows_KPN if rows_KPN.stride(2) == 1 else rows_KPN.contiguous() for rows_KPN, _ in arrays)
    outs = tuple(out_KN for _, out_KN in arrays)
    ends: list[int] = []
    for rows_KPN, out_KN in zip(rows, outs, strict=True):
        groups, _, width = rows_KPN.shape
        assert out_KN.shape == (groups, width) and out_KN.stride(1) == 1
        ends.append((ends[-1] if ends else 0) + groups * triton.cdiv(width, _COLUMNS))
    longest = max(rows_KPN.shape[1] for rows_KPN in rows)
    block = min(_MAX_ROWS, max(32, triton.next_power_of_2(longest)))
    _sum_kernel[(ends[-1],)](
        rows, outs, tuple(ends), *(tuple(rows_KPN.shape[axis] for rows_KPN in rows) for axis in (1, 2)),
        *(tuple(rows_KPN.stride(axis) for rows_KPN in rows) for axis in (0, 1)),
        tuple(out_KN.stride(0) for out_KN in outs),
        R=block, C=_COLUMNS, num_warps=block * _COLUMNS // _ELEMENTS,
    )  # fmt: skip


def sum_rows(rows_KPN: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(K, N) the sums over each group's rows."""
    groups, _, width = rows_KPN.shape
    out_KN = torch.empty(groups, width, dtype=dtype, device=rows_KPN.device)
    sum_into((rows_KPN, out_KN))
    return out_KN
