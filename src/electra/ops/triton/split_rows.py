"""Lengths and segment ids of the loader's rows, in one kernel: bit for bit `reference/split_rows.py`.

One program a sequence; the lengths come out contiguous.

Shapes: B sequences, L the power of two that holds their length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.loader import EXTRA_COLUMNS
from electra.ops.triton.choose_masked import with_whole_rows


@triton.jit
def _split_kernel(  # type: ignore[no-untyped-def]
    rows,  # (B, length + 3): ids, length, length of segment A, key; `rows_stride` apart
    lengths,  # (B,)
    segments,  # (B, length)
    rows_stride, length, L: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    position_L = tl.arange(0, L)
    end = tl.load(rows + sequence * rows_stride + length)
    second_L = (position_L >= tl.load(rows + sequence * rows_stride + length + 1)) & (position_L < end)
    tl.store(segments + sequence * length + position_L, second_L.to(tl.int32), position_L < length)
    tl.store(lengths + sequence, end)


def split_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows, sequences, length = with_whole_rows(rows), len(rows), rows.shape[1] - EXTRA_COLUMNS
    lengths_B = torch.empty(sequences, dtype=rows.dtype, device=rows.device)
    segments_BL = torch.empty(sequences, length, dtype=rows.dtype, device=rows.device)
    with torch.cuda.device_of(rows):
        _split_kernel[(sequences,)](
            rows, lengths_B, segments_BL, rows.stride(0), length, L=triton.next_power_of_2(length), num_warps=1
        )
    return lengths_B, segments_BL
