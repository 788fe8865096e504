"""Ids with samples at the masked positions in use, in one kernel: bit for bit `reference/replace_tokens.py`.

One program a sequence adds up the samples of each token and divides by their number. Without `average` no position may
be masked twice; then the mean is the sample itself.

Shapes: B sequences, L the power of two that holds their length, M masked positions, N of them at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.ops.triton.choose_masked import MASKED, with_whole_rows


@triton.jit
def _replace_kernel(  # type: ignore[no-untyped-def]
    ids,  # (B, length), rows `ids_stride` apart
    positions,  # (B, masked) int64
    used,  # (B, masked) bool
    sampled,  # (B, masked) int64
    out,  # (B, length)
    ids_stride, length, masked, L: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    position_L = tl.arange(0, L)
    total_L = tl.zeros([L], tl.int32)
    count_L = tl.zeros([L], tl.int32)
    for first in range(0, masked, N):
        number_N = first + tl.arange(0, N)
        inside_N = number_N < masked
        position_N = tl.load(positions + sequence * masked + number_N, inside_N, 0).to(tl.int32)
        used_N = tl.load(used + sequence * masked + number_N, inside_N, 0).to(tl.int1)
        sampled_N = tl.load(sampled + sequence * masked + number_N, inside_N, 0).to(tl.int32)
        here = (position_L[:, None] == position_N[None, :]) & used_N[None, :]
        total_L += tl.sum(tl.where(here, sampled_N[None, :], 0), 1)
        count_L += tl.sum(here.to(tl.int32), 1)
    id_L = tl.load(ids + sequence * ids_stride + position_L, position_L < length, 0)
    replaced_L = tl.where(count_L > 0, total_L // tl.maximum(count_L, 1), id_L)
    tl.store(out + sequence * length + position_L, replaced_L, position_L < length)


def replace_tokens(ids_BL: Tensor, masked: MaskedPositions, sampled_M: Tensor, *, average: bool) -> Tensor:
    del average
    (sequences, length), ids_BL = ids_BL.shape, with_whole_rows(ids_BL)
    out_BL = torch.empty(sequences, length, dtype=ids_BL.dtype, device=ids_BL.device)
    with torch.cuda.device_of(ids_BL):
        _replace_kernel[(sequences,)](
            ids_BL, *masked, sampled_M, out_BL, ids_BL.stride(0), length, masked.used_BM.shape[1],
            L=triton.next_power_of_2(length), N=MASKED, num_warps=4,
        )  # fmt: skip
    return out_BL
