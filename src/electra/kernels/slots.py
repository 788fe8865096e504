"""Which positions are predicted, what is shown there and what is put there: a launch each, a program a text.

Bit for bit what `batches.masking` and `objective.corrupt` compute, their plain twins.

Shapes: B texts, L the power of two that holds their length, S slots, N slots at a time, J places at a time.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng
from electra.batches.loader import EXTRA_COLUMNS
from electra.batches.masking import CHOOSE, REPLACE, SHOW, Slots
from electra.kernels.hashing import GOLDEN, mix, uniform, word

PLACES, SLOTS = 32, 8
COUNTED = 4096  # at a time


@triton.jit
def _under(key, site):  # type: ignore[no-untyped-def]
    """`rng.fold` of a word, with `site` as `rng.address` gives it."""
    return mix(key ^ word(site)) + GOLDEN


@triton.jit
def _allowed(ids, special, specials, place, length):  # type: ignore[no-untyped-def]
    allowed = place < length
    id = tl.load(ids + place, allowed, 0)
    for number in range(specials):
        allowed = allowed & (id != tl.load(special + number))
    return allowed


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    ids, lengths, keys, special, positions, used, row, length_row, key_row, specials, rate, slots, site, next_site,
    L: tl.constexpr, J: tl.constexpr, N: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0).to(tl.int64)
    ids += text * row
    length = tl.load(lengths + text * length_row)
    purpose = _under(word(tl.load(keys + text * key_row)), site)
    place_L = tl.arange(0, L)
    words_L = mix(purpose ^ mix(word(place_L)))
    allowed_L = _allowed(ids, special, specials, place_L, length)
    available = tl.sum(allowed_L.to(tl.int32), 0)
    rank_L = tl.zeros([L], tl.int32)
    for first in range(0, length, J):
        place_J = first + tl.arange(0, J)
        words_J = mix(purpose ^ mix(word(place_J)))
        allowed_J = _allowed(ids, special, specials, place_J, length)
        earlier = (words_J[None, :] == words_L[:, None]) & (place_J[None, :] < place_L[:, None])
        earlier = (earlier | (words_J[None, :] < words_L[:, None])) & allowed_J[None, :]
        rank_L += tl.sum(earlier.to(tl.int32), 1)
    share = length.to(tl.float32) * rate
    wanted = tl.minimum(tl.maximum((share + 12582912.0) - 12582912.0, 1.0), slots * 1.0)  # rounded to the even one
    if AGAIN:
        purpose = _under(purpose, next_site)
        most = tl.where(available > 0, wanted, 0.0)
    else:
        most = tl.minimum(wanted, available.to(tl.float32))
    for first in range(0, slots, N):
        number_N = first + tl.arange(0, N)
        pick_N = number_N
        if AGAIN:
            draw_N = mix(purpose ^ mix(word(number_N)))
            pick_N = ((draw_N.to(tl.uint64) * available.to(tl.uint64)) >> 32).to(tl.int32)
        found = allowed_L[:, None] & (rank_L[:, None] == pick_N[None, :])
        used_N = number_N.to(tl.float32) < most
        chosen_N = tl.where(used_N, tl.sum(tl.where(found, place_L[:, None], 0), 0), 0)
        tl.store(positions + text * slots + number_N, chosen_N.to(tl.int64), number_N < slots)
        tl.store(used + text * slots + number_N, used_N, number_N < slots)


@triton.jit
def _show(  # type: ignore[no-untyped-def]
    ids, keys, positions, used, out, row, key_row, length, slots, site, hidden, written, mask_id, vocabulary,
    L: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0).to(tl.int64)
    purpose = _under(word(tl.load(keys + text * key_row)), site)
    place_L = tl.arange(0, L)
    last_L = tl.full([L], -1, tl.int32)
    for first in range(0, slots, N):
        number_N = first + tl.arange(0, N)
        inside_N = number_N < slots
        position_N = tl.load(positions + text * slots + number_N, inside_N, 0).to(tl.int32)
        written_N = tl.load(used + text * slots + number_N, inside_N, 0).to(tl.int1)
        written_N = written_N & (uniform(mix(purpose ^ mix(word(number_N)))) < written)
        here = (place_L[:, None] == position_N[None, :]) & written_N[None, :]
        last_L = tl.maximum(last_L, tl.max(tl.where(here, number_N[None, :], -1), 1))
    draw_L = uniform(mix(purpose ^ mix(word(last_L))))
    random_L = ((draw_L - hidden) * 10 * vocabulary).to(tl.int32)
    random_L = tl.minimum(tl.maximum(random_L, 0), vocabulary - 1)
    value_L = tl.where(draw_L < hidden, mask_id, random_L)
    id_L = tl.load(ids + text * row + place_L, place_L < length, 0)
    tl.store(out + text * length + place_L, tl.where(last_L >= 0, value_L, id_L), place_L < length)


@triton.jit
def _replace(  # type: ignore[no-untyped-def]
    ids, positions, used, sampled, out, row, length, slots, L: tl.constexpr, N: tl.constexpr
):
    text = tl.program_id(0).to(tl.int64)
    place_L = tl.arange(0, L)
    total_L = tl.zeros([L], tl.int32)
    count_L = tl.zeros([L], tl.int32)
    for first in range(0, slots, N):
        number_N = first + tl.arange(0, N)
        inside_N = number_N < slots
        position_N = tl.load(positions + text * slots + number_N, inside_N, 0).to(tl.int32)
        used_N = tl.load(used + text * slots + number_N, inside_N, 0).to(tl.int1)
        sampled_N = tl.load(sampled + text * slots + number_N, inside_N, 0).to(tl.int32)
        here = (place_L[:, None] == position_N[None, :]) & used_N[None, :]
        total_L += tl.sum(tl.where(here, sampled_N[None, :], 0), 1)
        count_L += tl.sum(here.to(tl.int32), 1)
    id_L = tl.load(ids + text * row + place_L, place_L < length, 0)
    seen_L = tl.where(count_L > 0, total_L // tl.maximum(count_L, 1), id_L)
    tl.store(out + text * length + place_L, seen_L, place_L < length)


@triton.jit
def _gold_and_keys(  # type: ignore[no-untyped-def]
    ids, keys, positions, gold, out, row, key_row, slots, site, S: tl.constexpr
):
    text = tl.program_id(0).to(tl.int64)
    number_S = tl.arange(0, S)
    inside_S = number_S < slots
    position_S = tl.load(positions + text * slots + number_S, inside_S, 0)
    tl.store(gold + text * slots + number_S, tl.load(ids + text * row + position_S, inside_S, 0).to(tl.int64), inside_S)
    purpose = _under(word(tl.load(keys + text * key_row)), site)
    key_S = mix(purpose ^ mix(word(number_S) * GOLDEN)) + GOLDEN
    tl.store(out + text * slots + number_S, key_S.to(tl.int32, bitcast=True), inside_S)


@triton.jit
def _take_apart(rows, lengths, segments, row, length, L: tl.constexpr):  # type: ignore[no-untyped-def]
    text = tl.program_id(0).to(tl.int64)
    place_L = tl.arange(0, L)
    end = tl.load(rows + text * row + length)
    second_L = (place_L >= tl.load(rows + text * row + length + 1)) & (place_L < end)
    tl.store(segments + text * length + place_L, second_L.to(tl.int32), place_L < length)
    tl.store(lengths + text, end)


@triton.jit
def _count(used, lengths, out, slots, texts, length_row, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    used_N = tl.zeros([BLOCK], tl.int32)
    tokens_N = tl.zeros([BLOCK], tl.int32)
    for first in range(0, slots, BLOCK):
        place = first + tl.arange(0, BLOCK)
        used_N += tl.load(used + place, place < slots, 0).to(tl.int32)
        tokens_N += tl.load(lengths + place * length_row, place < texts, 0).to(tl.int32)
    tl.store(out, tl.sum(used_N, 0).to(tl.float32))
    tl.store(out + 1, tl.sum(tokens_N, 0).to(tl.float32))


def count(used_BS: Tensor, lengths_B: Tensor) -> Tensor:
    """(2,) how many slots are in use, and how many tokens are real."""
    out_2 = torch.empty(2, dtype=torch.float32, device=used_BS.device)
    with torch.cuda.device_of(used_BS):
        _count[(1,)](
            used_BS.contiguous(), lengths_B, out_2, used_BS.numel(), len(lengths_B), lengths_B.stride(0),
            BLOCK=COUNTED, num_warps=8,
        )  # fmt: skip
    return out_2


def choose(
    ids_BL: Tensor, lengths_B: Tensor, keys_B: Tensor, *, slots: int, rate: float, again: bool, special: tuple[int, ...]
) -> Slots:
    """The positions to predict; `again` draws them with replacement."""
    texts, length = ids_BL.shape
    positions_BS = torch.empty(texts, slots, dtype=torch.long, device=ids_BL.device)
    used_BS = torch.empty(texts, slots, dtype=torch.bool, device=ids_BL.device)
    forbidden = _on_device(special, ids_BL.device)
    ids_BL = _rows(ids_BL)
    with torch.cuda.device_of(ids_BL):
        _choose[(texts,)](
            ids_BL, lengths_B, keys_B, forbidden, positions_BS, used_BS,
            ids_BL.stride(0), lengths_B.stride(0), keys_B.stride(0), len(special), rate, slots,
            rng.address(CHOOSE), rng.address(1),
            L=triton.next_power_of_2(length), J=PLACES, N=SLOTS, AGAIN=again, num_warps=4,
            enable_fp_fusion=False,  # the share of a length is rounded before it becomes a number of slots
        )  # fmt: skip
    return Slots(positions_BS, used_BS)


def show(
    ids_BL: Tensor, keys_B: Tensor, slots: Slots, *, hidden: float, written: float, mask_id: int, vocab: int
) -> Tensor:
    """Ids with [MASK] at the slots whose draw is below `hidden`, and a random token where it is below `written`."""
    (texts, length), ids_BL = ids_BL.shape, _rows(ids_BL)
    out_BL = torch.empty(texts, length, dtype=ids_BL.dtype, device=ids_BL.device)
    with torch.cuda.device_of(ids_BL):
        _show[(texts,)](
            ids_BL, keys_B, slots.positions_BS, slots.used_BS, out_BL, ids_BL.stride(0), keys_B.stride(0), length,
            slots.positions_BS.shape[1], rng.address(SHOW), hidden, written, mask_id, vocab,
            L=triton.next_power_of_2(length), N=SLOTS, num_warps=4,
        )  # fmt: skip
    return out_BL


def replace(ids_BL: Tensor, slots: Slots, sampled_BS: Tensor) -> Tensor:
    """Ids with the samples at the slots in use, averaged where several stand at one position."""
    (texts, length), ids_BL = ids_BL.shape, _rows(ids_BL)
    out_BL = torch.empty(texts, length, dtype=ids_BL.dtype, device=ids_BL.device)
    with torch.cuda.device_of(ids_BL):
        _replace[(texts,)](
            ids_BL, slots.positions_BS, slots.used_BS, sampled_BS, out_BL, ids_BL.stride(0), length,
            slots.positions_BS.shape[1], L=triton.next_power_of_2(length), N=SLOTS, num_warps=4,
        )  # fmt: skip
    return out_BL


def gold_and_keys(ids_BL: Tensor, keys_B: Tensor, positions_BS: Tensor) -> tuple[Tensor, Tensor]:
    """(M,) what stands at the slots, and (M,) keys, one for each slot's replacement."""
    (texts, slots), ids_BL = positions_BS.shape, _rows(ids_BL)
    gold_M = torch.empty(texts * slots, dtype=torch.long, device=ids_BL.device)
    keys_M = torch.empty(texts * slots, dtype=torch.int32, device=ids_BL.device)
    with torch.cuda.device_of(ids_BL):
        _gold_and_keys[(texts,)](
            ids_BL, keys_B, positions_BS.contiguous(), gold_M, keys_M, ids_BL.stride(0), keys_B.stride(0), slots,
            rng.address(REPLACE), S=triton.next_power_of_2(slots), num_warps=1,
        )  # fmt: skip
    return gold_M, keys_M


def lengths_and_segments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`batches.sequences.lengths_and_segments` in one launch, with lengths in one piece."""
    rows, texts, length = _rows(rows), len(rows), rows.shape[1] - EXTRA_COLUMNS
    lengths_B = torch.empty(texts, dtype=rows.dtype, device=rows.device)
    segments_BL = torch.empty(texts, length, dtype=rows.dtype, device=rows.device)
    with torch.cuda.device_of(rows):
        _take_apart[(texts,)](
            rows, lengths_B, segments_BL, rows.stride(0), length, L=triton.next_power_of_2(length), num_warps=1
        )
    return lengths_B, segments_BL


def _rows(ids_BL: Tensor) -> Tensor:
    """Ids whose rows are each in one piece, wherever the rows are."""
    return ids_BL if ids_BL.stride(1) == 1 else ids_BL.contiguous()


@cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
