"""Ids with [MASK] or a random token at the masked positions, in one kernel: bit for bit `reference/apply_mask.py`.

One program a sequence finds for each token the last masked position that writes there.

Shapes: B sequences, L the power of two that holds their length, M masked positions of a sequence, N of them at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng
from electra.batches.masking import SHOW, MaskedPositions
from electra.ops.triton.choose_masked import MASKED, with_whole_rows
from electra.ops.triton.hash import bits, fold, uniform, unsigned


@triton.jit
def _mask_kernel(  # type: ignore[no-untyped-def]
    ids,  # (B, length), rows `ids_stride` apart
    keys,  # (B,) int32, strided
    positions,  # (B, masked) int64
    used,  # (B, masked) bool
    out,  # (B, length)
    ids_stride, keys_stride, length, masked, address, mask_share, written_share, inverse_share, mask_id, vocab,
    L: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    key = fold(unsigned(tl.load(keys + sequence * keys_stride)), address)
    position_L = tl.arange(0, L)
    last_L = tl.full([L], -1, tl.int32)
    for first in range(0, masked, N):
        number_N = first + tl.arange(0, N)
        inside_N = number_N < masked
        position_N = tl.load(positions + sequence * masked + number_N, inside_N, 0).to(tl.int32)
        written_N = tl.load(used + sequence * masked + number_N, inside_N, 0).to(tl.int1)
        written_N = written_N & (uniform(bits(key, number_N)) < written_share)
        here = (position_L[:, None] == position_N[None, :]) & written_N[None, :]
        last_L = tl.maximum(last_L, tl.max(tl.where(here, number_N[None, :], -1), 1))
    draw_L = uniform(bits(key, last_L))
    random_L = ((draw_L - mask_share) * inverse_share * vocab).to(tl.int32)
    random_L = tl.minimum(tl.maximum(random_L, 0), vocab - 1)
    value_L = tl.where(draw_L < mask_share, mask_id, random_L)
    id_L = tl.load(ids + sequence * ids_stride + position_L, position_L < length, 0)
    tl.store(out + sequence * length + position_L, tl.where(last_L >= 0, value_L, id_L), position_L < length)


def apply_mask(
    ids_BL: Tensor,
    keys_B: Tensor,
    masked: MaskedPositions,
    *,
    mask_share: float,
    random_share: float,
    mask_id: int,
    vocab: int,
) -> Tensor:
    (sequences, length), ids_BL = ids_BL.shape, with_whole_rows(ids_BL)
    out_BL = torch.empty(sequences, length, dtype=ids_BL.dtype, device=ids_BL.device)
    inverse_share = 1 / random_share if random_share else 0.0
    with torch.cuda.device_of(ids_BL):
        _mask_kernel[(sequences,)](
            ids_BL, keys_B, *masked, out_BL, ids_BL.stride(0), keys_B.stride(0), length, masked.used_BM.shape[1],
            rng.address(SHOW), mask_share, mask_share + random_share, inverse_share, mask_id, vocab,
            L=triton.next_power_of_2(length), N=MASKED, num_warps=4,
        )  # fmt: skip
    return out_BL
