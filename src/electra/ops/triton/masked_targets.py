"""The original tokens at the masked positions and a key for each replacement, in one kernel, one program a sequence.

Bit for bit `reference/masked_targets.py`.

Shapes: B sequences, L length, M masked positions (of a sequence after B and in the kernel the power of two that holds
them, of the whole batch alone).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng
from electra.batches.masking import REPLACE, MaskedPositions
from electra.ops.triton.choose_masked import with_whole_rows
from electra.ops.triton.hash import GOLDEN, fold, mix, unsigned


@triton.jit
def _targets_kernel(  # type: ignore[no-untyped-def]
    ids,  # (B, L), rows `ids_stride` apart
    keys,  # (B,) int32, strided
    positions,  # (B, masked) int64
    gold,  # (B·masked,) int64
    out,  # (B·masked,) int32 keys
    ids_stride, keys_stride, masked, address, M: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    number_M = tl.arange(0, M)
    inside_M = number_M < masked
    offset_M = sequence * masked + number_M
    position_M = tl.load(positions + offset_M, inside_M, 0)
    tl.store(gold + offset_M, tl.load(ids + sequence * ids_stride + position_M, inside_M, 0).to(tl.int64), inside_M)
    key = fold(unsigned(tl.load(keys + sequence * keys_stride)), address)
    key_M = mix(key ^ mix(unsigned(number_M) * GOLDEN)) + GOLDEN
    tl.store(out + offset_M, key_M.to(tl.int32, bitcast=True), inside_M)


def masked_targets(ids_BL: Tensor, keys_B: Tensor, masked: MaskedPositions) -> tuple[Tensor, Tensor]:
    (sequences, count), ids_BL = masked.positions_BM.shape, with_whole_rows(ids_BL)
    gold_M = torch.empty(sequences * count, dtype=torch.long, device=ids_BL.device)
    keys_M = torch.empty(sequences * count, dtype=torch.int32, device=ids_BL.device)
    with torch.cuda.device_of(ids_BL):
        _targets_kernel[(sequences,)](
            ids_BL, keys_B, masked.positions_BM.contiguous(), gold_M, keys_M, ids_BL.stride(0), keys_B.stride(0),
            count, rng.address(REPLACE), M=triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip
    return gold_M, keys_M
