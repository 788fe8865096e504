"""Sums over lines: what programs left one line each of, and what a bias has coming from every token.

Shapes: K groups, P lines, N columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS, COLUMNS = 512, 32
"""At a time: all that a program reads should be on its way at once, since few programs share the work."""
ELEMENTS = 1024
"""Of a warp: 32 a thread."""


@triton.jit
def _sum_some(  # type: ignore[no-untyped-def]
    lines, out, program, count, width, group_step, line_step, out_step, R: tl.constexpr, C: tl.constexpr
):
    parts = tl.cdiv(width, C)
    group = (program // parts).to(tl.int64)
    columns_C = (program % parts) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for first in range(0, count, R):
        rows_R = first + tl.arange(0, R)
        inside = (rows_R < count)[:, None] & (columns_C < width)[None, :]
        place = group * group_step + rows_R.to(tl.int64)[:, None] * line_step + columns_C[None, :]
        total_RC += tl.load(lines + place, inside, 0.0).to(tl.float32)
    total_C = tl.sum(total_RC, 0)
    tl.store(out + group * out_step + columns_C, total_C.to(out.dtype.element_ty), columns_C < width)


@triton.jit
def _sum_lines(  # type: ignore[no-untyped-def]
    lines, outs, ends, counts, widths, group_steps, line_steps, out_steps, R: tl.constexpr, C: tl.constexpr
):
    program = tl.program_id(0)
    first = 0
    for array in tl.static_range(len(lines)):
        if (program >= first) & (program < ends[array]):
            _sum_some(
                lines[array], outs[array], program - first, counts[array], widths[array], group_steps[array],
                line_steps[array], out_steps[array], R, C,
            )  # fmt: skip
        first = ends[array]


def sum_into(*arrays: tuple[Tensor, Tensor]) -> None:
    """Fill (K, N) outs with the sums of each group's lines, added up in fp32: (K, P, N) lines and out, all at once."""
    lines = tuple(line_KPN if line_KPN.stride(2) == 1 else line_KPN.contiguous() for line_KPN, _ in arrays)
    outs = tuple(out_KN for _, out_KN in arrays)
    ends: list[int] = []
    for line_KPN, out_KN in zip(lines, outs, strict=True):
        groups, _, width = line_KPN.shape
        assert out_KN.shape == (groups, width) and out_KN.stride(1) == 1
        ends.append((ends[-1] if ends else 0) + groups * triton.cdiv(width, COLUMNS))
    most = max(line_KPN.shape[1] for line_KPN in lines)
    rows = min(MOST_ROWS, max(32, triton.next_power_of_2(most)))
    _sum_lines[(ends[-1],)](
        lines, outs, tuple(ends), *(tuple(line_KPN.shape[axis] for line_KPN in lines) for axis in (1, 2)),
        *(tuple(line_KPN.stride(axis) for line_KPN in lines) for axis in (0, 1)),
        tuple(out_KN.stride(0) for out_KN in outs),
        R=rows, C=COLUMNS, num_warps=rows * COLUMNS // ELEMENTS,
    )  # fmt: skip


def sum_lines(lines_KPN: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(K, N) the sums of each group's lines, added up in fp32."""
    groups, _, width = lines_KPN.shape
    out_KN = torch.empty(groups, width, dtype=dtype, device=lines_KPN.device)
    sum_into((lines_KPN, out_KN))
    return out_KN
