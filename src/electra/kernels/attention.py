"""Attention; over short sequences, one program holds all scores of one head of one text.

Shapes: T = B·L tokens, N heads, H head size, L length. Queries, keys and values lie side by side in one (T, 3·N·H)
array.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.sequences import Spans
from electra.kernels import flash, native
from electra.kernels.hashing import Drop, kept, precision, row_words
from electra.kernels.native import PROCESSORS, TILE, Boxes, Given, Kernel, launch

WARPS = 8
FORWARD = Kernel("attention_forward", ("group", "heads", "attention"), 6 * TILE + 256 + 16)
BACKWARD = Kernel("attention_backward", ("group", "heads", "attention_back"), 12 * TILE + 4096 + 16, together=1)
LONGEST = 128
"""Tokens of a sequence whose scores one program can hold; `flash` takes longer ones."""


@triton.jit
def softmax(q_LH, k_LH, seen_L, scale, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Softmax over the keys that are seen, in two factors: (L, L) with 1 for the likeliest key, and (L,) of each row.

    The second is left to whom has less to multiply.
    """
    s_LL = tl.dot(q_LH, tl.trans(k_LH), input_precision=PRECISION)
    s_LL = tl.where(seen_L[None, :], s_LL, -1e30)
    binary = scale * 1.4426950408889634
    top_L = tl.maximum(tl.max(s_LL, 1), -1e28)  # of a text of no tokens
    e_LL = tl.exp2(s_LL * binary - (top_L * binary)[:, None])
    return e_LL, 1.0 / tl.maximum(tl.sum(e_LL, 1), 1e-30)


@triton.jit(do_not_specialize=["site"])
def _attention_forward(  # type: ignore[no-untyped-def]
    qkv, out, lengths, keys, site, length, heads, scale, threshold, grow,
    H: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    inside = (rows_L < length)[:, None]
    base = qkv + text.to(tl.int64) * length * 3 * width + head * H
    place = base + rows_L[:, None] * (3 * width) + inner_H[None, :]
    q_LH = tl.load(place, inside, 0.0)
    k_LH = tl.load(place + width, inside, 0.0)
    v_LH = tl.load(place + 2 * width, inside, 0.0)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    e_LL, share_L = softmax(q_LH, k_LH, rows_L < visible, scale, PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
        e_LL = tl.where(kept(words_L, 0, threshold, L), e_LL, 0.0)
        share_L *= grow
    mixed_LH = tl.dot(e_LL.to(v_LH.dtype), v_LH, input_precision=PRECISION) * share_L[:, None]
    target = out + text.to(tl.int64) * length * width + head * H
    tl.store(target + rows_L[:, None] * width + inner_H[None, :], mixed_LH.to(q_LH.dtype), inside)


@triton.jit(do_not_specialize=["site"])
def _attention_backward(  # type: ignore[no-untyped-def]
    qkv, gradient, sums, lengths, keys, site, length, heads, scale, threshold, grow,
    H: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    inside = (rows_L < length)[:, None]
    base = qkv + text.to(tl.int64) * length * 3 * width + head * H
    place = base + rows_L[:, None] * (3 * width) + inner_H[None, :]
    incoming = gradient + text.to(tl.int64) * length * width + head * H
    q_LH = tl.load(place, inside, 0.0)
    k_LH = tl.load(place + width, inside, 0.0)
    v_LH = tl.load(place + 2 * width, inside, 0.0)
    do_LH = tl.load(incoming + rows_L[:, None] * width + inner_H[None, :], inside, 0.0)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    kind = q_LH.dtype
    e_LL, share_L = softmax(q_LH, k_LH, rows_L < visible, scale, PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
        m_LL = tl.where(kept(words_L, 0, threshold, L), e_LL * (share_L * grow)[:, None], 0.0)
    else:
        m_LL = e_LL * share_L[:, None]
    d_LL = tl.dot(do_LH, tl.trans(v_LH), input_precision=PRECISION) * m_LL
    dv_LH = tl.dot(tl.trans(m_LL.to(kind)), do_LH, input_precision=PRECISION)
    s_LL = (d_LL - e_LL * (tl.sum(d_LL, 1) * share_L)[:, None]).to(kind)
    dq_LH = tl.dot(s_LL, k_LH, input_precision=PRECISION) * scale
    dk_LH = tl.dot(tl.trans(s_LL), q_LH, input_precision=PRECISION) * scale
    # Each program has read all that it overwrites.
    tl.debug_barrier()
    tl.store(place, dq_LH.to(kind), inside)
    tl.store(place + width, dk_LH.to(kind), inside)
    tl.store(place + 2 * width, dv_LH.to(kind), inside)
    # Rows past the end have no gradient, so nothing need be left out of the sums. Over the keys it is zero: what is
    # added to all of them changes no softmax.
    row = sums + text * 3 * width + head * H + inner_H
    tl.store(row, tl.sum(dq_LH, 0))
    tl.store(row + width, tl.zeros([H], tl.float32))
    tl.store(row + 2 * width, tl.sum(dv_LH, 0))


def attend(
    qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int, out: Tensor,
    spans: Spans | None = None,
) -> Tensor | None:  # fmt: skip
    """Fill `out` (T, N·H) with softmax attention of every head, dropout included.

    With `spans`, lengths play no part. Returned is what the way back needs beside it, if anything.
    """
    if length > LONGEST or spans is not None:
        return flash.attend(qkv_TW, lengths_B, drop, length=length, heads=heads, out=out, spans=spans)
    programs = len(qkv_TW) // length * heads
    if _native(qkv_TW, length, heads):
        level_TN = torch.empty(len(qkv_TW) * heads, dtype=torch.float32, device=qkv_TW.device)
        blocks = min(programs, FORWARD.together * PROCESSORS)
        matrices = Boxes(qkv_TW, native.LONGEST, length), Boxes(out, native.LONGEST // 2, length)
        launch(FORWARD, blocks, *matrices, level_TN, *_told(lengths_B, drop, programs, length=length, heads=heads))
        return level_TN
    numbers = flash.numbers(qkv_TW, lengths_B, drop, length=length, heads=heads)
    constants = _constants(qkv_TW, lengths_B, drop, length=length, heads=heads)
    _attention_forward[(programs,)](qkv_TW, out, *numbers, **constants, num_warps=WARPS)
    return None


def attend_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, mixed_TD: Tensor, level_TN: Tensor | None, lengths_B: Tensor | None,
    drop: Drop, sums_BW: Tensor, *, length: int, heads: int, spans: Spans | None = None,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums_BW` with that gradient's sums over each text.

    `mixed_TD` and `level_TN` are what `attend` filled and returned.
    """
    programs = len(qkv_TW) // length * heads
    if level_TN is not None and length <= LONGEST and spans is None:
        blocks = min(programs, BACKWARD.together * PROCESSORS)
        matrices = Boxes(qkv_TW, native.LONGEST, length), Boxes(gradient_TD, native.LONGEST, length)
        told = _told(lengths_B, drop, programs, length=length, heads=heads)
        launch(BACKWARD, blocks, *matrices, level_TN, sums_BW, *told)
        return
    if level_TN is not None:
        flash.attend_backward(
            qkv_TW, gradient_TD, mixed_TD, level_TN, lengths_B, drop, sums_BW,
            length=length, heads=heads, spans=spans,
        )  # fmt: skip
        return
    numbers = flash.numbers(qkv_TW, lengths_B, drop, length=length, heads=heads)
    constants = _constants(qkv_TW, lengths_B, drop, length=length, heads=heads)
    _attention_backward[(programs,)](qkv_TW, gradient_TD, sums_BW, *numbers, **constants, num_warps=WARPS)


def _native(qkv_TW: Tensor, length: int, heads: int) -> bool:
    """Whether the kernels in CUDA know these sizes, and run here."""
    known = qkv_TW.shape[1] == 3 * heads * native.HEAD and length <= native.LONGEST
    return known and native.can_run(qkv_TW, FORWARD) and native.can_run(qkv_TW, BACKWARD)


def _told(lengths_B: Tensor | None, drop: Drop, items: int, *, length: int, heads: int) -> tuple[Given, ...]:
    """What they are told after their arrays."""
    scale = native.HEAD**-0.5
    return lengths_B, drop.keys_B, drop.site, items, length, heads, scale, drop.threshold, drop.grow


def _constants(qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int) -> dict[str, Any]:
    block = max(32, triton.next_power_of_2(length))
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "L": block,
        "RAGGED": lengths_B is not None,
        "DROP": drop.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
    }
