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
def _sum_lines(lines, out, count, width, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    group = tl.program_id(0).to(tl.int64)
    columns_C = tl.program_id(1) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for first in range(0, count, R):
        rows_R = first + tl.arange(0, R)
        inside = (rows_R < count)[:, None] & (columns_C < width)[None, :]
        place = (group * count + rows_R)[:, None] * width + columns_C[None, :]
        total_RC += tl.load(lines + place, inside, 0.0).to(tl.float32)
    total_C = tl.sum(total_RC, 0)
    tl.store(out + group * width + columns_C, total_C.to(out.dtype.element_ty), columns_C < width)


def sum_lines(lines_KPN: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(K, N) the sums of each group's lines, added up in fp32."""
    groups, count, width = lines_KPN.shape
    out_KN = torch.empty(groups, width, dtype=dtype, device=lines_KPN.device)
    rows = min(MOST_ROWS, max(32, triton.next_power_of_2(count)))
    _sum_lines[(groups, triton.cdiv(width, COLUMNS))](
        lines_KPN.contiguous(), out_KN, count, width, R=rows, C=COLUMNS, num_warps=rows * COLUMNS // ELEMENTS
    )
    return out_KN
