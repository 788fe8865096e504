"""The positions to predict, in one kernel, one program a sequence: bit for bit `reference/choose_masked.py`.

A token's rank is the number of candidates whose random bits are lower; the lowest ranks are masked, or, drawing with
replacement, the ranks that further random bits name.

Shapes: B sequences, L the power of two that holds their length, M masked positions of a sequence, N masked positions at
a time, J positions at a time.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng
from electra.batches.masking import CHOOSE, MaskedPositions, max_masked
from electra.config.schema import MaskingConfig
from electra.ops.triton.hash import bits, fold, unsigned

_POSITIONS = 32
MASKED = 8  # positions that a program handles at a time


@triton.jit
def _candidates(ids, special, specials, position, length):  # type: ignore[no-untyped-def]
    candidate = position < length
    id = tl.load(ids + position, candidate, 0)
    for number in range(specials):
        candidate = candidate & (id != tl.load(special + number))
    return candidate


@triton.jit
def _choose_kernel(  # type: ignore[no-untyped-def]
    ids,  # (B, length) int32, rows `ids_stride` apart
    lengths, keys,  # (B,) int32, strided
    special,  # (specials,) int32: tokens that are never masked
    positions,  # (B, masked) int64
    used,  # (B, masked) bool
    ids_stride, lengths_stride, keys_stride, specials, rate, masked, address, next_address,
    L: tl.constexpr, J: tl.constexpr, N: tl.constexpr, REPLACEMENT: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    ids += sequence * ids_stride
    length = tl.load(lengths + sequence * lengths_stride)
    key = fold(unsigned(tl.load(keys + sequence * keys_stride)), address)
    position_L = tl.arange(0, L)
    bits_L = bits(key, position_L)
    candidate_L = _candidates(ids, special, specials, position_L, length)
    available = tl.sum(candidate_L.to(tl.int32), 0)
    rank_L = tl.zeros([L], tl.int32)
    for first in range(0, length, J):
        position_J = first + tl.arange(0, J)
        bits_J = bits(key, position_J)
        candidate_J = _candidates(ids, special, specials, position_J, length)
        earlier = (bits_J[None, :] == bits_L[:, None]) & (position_J[None, :] < position_L[:, None])
        earlier = (earlier | (bits_J[None, :] < bits_L[:, None])) & candidate_J[None, :]
        rank_L += tl.sum(earlier.to(tl.int32), 1)
    share = length.to(tl.float32) * rate
    wanted = tl.minimum(tl.maximum((share + 12582912.0) - 12582912.0, 1.0), masked * 1.0)  # rounds half to even
    if REPLACEMENT:
        key = fold(key, next_address)
        count = tl.where(available > 0, wanted, 0.0)
    else:
        count = tl.minimum(wanted, available.to(tl.float32))
    for first in range(0, masked, N):
        number_N = first + tl.arange(0, N)
        rank_N = number_N
        if REPLACEMENT:
            rank_N = ((bits(key, number_N).to(tl.uint64) * available.to(tl.uint64)) >> 32).to(tl.int32)
        found = candidate_L[:, None] & (rank_L[:, None] == rank_N[None, :])
        used_N = number_N.to(tl.float32) < count
        chosen_N = tl.where(used_N, tl.sum(tl.where(found, position_L[:, None], 0), 0), 0)
        tl.store(positions + sequence * masked + number_N, chosen_N.to(tl.int64), number_N < masked)
        tl.store(used + sequence * masked + number_N, used_N, number_N < masked)


def choose_masked(
    ids_BL: Tensor, lengths_B: Tensor, keys_B: Tensor, *, masking: MaskingConfig, special: tuple[int, ...]
) -> MaskedPositions:
    sequences, length = ids_BL.shape
    masked = max(1, max_masked(length, masking.rate))
    positions_BM = torch.empty(sequences, masked, dtype=torch.long, device=ids_BL.device)
    used_BM = torch.empty(sequences, masked, dtype=torch.bool, device=ids_BL.device)
    ids_BL = with_whole_rows(ids_BL)
    with torch.cuda.device_of(ids_BL):
        _choose_kernel[(sequences,)](
            ids_BL, lengths_B, keys_B, _on_device(special, ids_BL.device), positions_BM, used_BM,
            ids_BL.stride(0), lengths_B.stride(0), keys_B.stride(0), len(special), masking.rate, masked,
            rng.address(CHOOSE), rng.address(1),
            L=triton.next_power_of_2(length), J=_POSITIONS, N=MASKED,
            REPLACEMENT=masking.policy != "without_replacement", num_warps=4,
            enable_fp_fusion=False,  # length · rate is rounded before it becomes a count
        )  # fmt: skip
    return MaskedPositions(positions_BM, used_BM)


def with_whole_rows(ids_BL: Tensor) -> Tensor:
    """Ids each of whose rows is contiguous, whatever lies between them."""
    return ids_BL if ids_BL.stride(1) == 1 else ids_BL.contiguous()


@cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
