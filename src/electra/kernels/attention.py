"""Attention; over short sequences, one program holds all scores of one head of one text.

Shapes: T = B·L tokens, N heads, H head size, L length, C = half of L, columns of the scores in two halves (dropout
draws one word for an element of each). Queries, keys and values lie side by side in one (T, 3·N·H) array.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import flash
from electra.kernels.hashing import Drop, kept, precision, row_words

WARPS = 8
LONGEST = 128
"""Tokens of a sequence whose scores one program can hold; `flash` takes longer ones."""


@triton.jit
def _halves(pointer, row_stride, inner_H, rows_C, second, half, length):  # type: ignore[no-untyped-def]
    """(C, H) twice: the first and the second half of the rows of one (L, H) block."""
    first_CH = tl.load(pointer + rows_C[:, None] * row_stride + inner_H[None, :], (rows_C < half)[:, None], 0.0)
    second_CH = tl.load(pointer + second[:, None] * row_stride + inner_H[None, :], (second < length)[:, None], 0.0)
    return first_CH, second_CH


@triton.jit
def probabilities(  # type: ignore[no-untyped-def]
    q_LH, k0_CH, k1_CH, rows_C, second, half, visible, scale, PRECISION: tl.constexpr
):
    """Softmax over both halves of the keys."""
    s0 = tl.dot(q_LH, tl.trans(k0_CH), input_precision=PRECISION) * scale
    s1 = tl.dot(q_LH, tl.trans(k1_CH), input_precision=PRECISION) * scale
    s0 = tl.where(((rows_C < half) & (rows_C < visible))[None, :], s0, -1e30)
    s1 = tl.where((second < visible)[None, :], s1, -1e30)
    top = tl.maximum(tl.max(s0, 1), tl.max(s1, 1))
    p0 = tl.exp(s0 - top[:, None])
    p1 = tl.exp(s1 - top[:, None])
    total = 1.0 / (tl.sum(p0, 1) + tl.sum(p1, 1))
    return p0 * total[:, None], p1 * total[:, None]


@triton.jit(do_not_specialize=["site"])
def _attention_forward(  # type: ignore[no-untyped-def]
    qkv, out, lengths, keys, site, length, half, heads, scale, threshold, grow,
    H: tl.constexpr, L: tl.constexpr, C: tl.constexpr, RAGGED: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    rows_C = tl.arange(0, C)
    second = half + rows_C
    base = qkv + text.to(tl.int64) * length * 3 * width + head * H
    q_LH = tl.load(base + rows_L[:, None] * (3 * width) + inner_H[None, :], (rows_L < length)[:, None], 0.0)
    k0, k1 = _halves(base + width, 3 * width, inner_H, rows_C, second, half, length)
    v0, v1 = _halves(base + 2 * width, 3 * width, inner_H, rows_C, second, half, length)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    p0, p1 = probabilities(q_LH, k0, k1, rows_C, second, half, visible, scale, PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
        keep0, keep1 = kept(words_L, rows_C, threshold)
        p0 = tl.where(keep0, p0 * grow, 0.0)
        p1 = tl.where(keep1, p1 * grow, 0.0)
    mixed_LH = tl.dot(p0.to(v0.dtype), v0, input_precision=PRECISION)
    mixed_LH += tl.dot(p1.to(v1.dtype), v1, input_precision=PRECISION)
    target = out + text.to(tl.int64) * length * width + head * H
    tl.store(target + rows_L[:, None] * width + inner_H[None, :], mixed_LH.to(q_LH.dtype), (rows_L < length)[:, None])


@triton.jit(do_not_specialize=["site"])
def _attention_backward(  # type: ignore[no-untyped-def]
    qkv, gradient, sums, lengths, keys, site, length, half, heads, scale, threshold, grow,
    H: tl.constexpr, L: tl.constexpr, C: tl.constexpr, RAGGED: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    rows_C = tl.arange(0, C)
    second = half + rows_C
    base = qkv + text.to(tl.int64) * length * 3 * width + head * H
    inside_L = (rows_L < length)[:, None]
    inside_C0 = (rows_C < half)[:, None]
    inside_C1 = (second < length)[:, None]
    q_LH = tl.load(base + rows_L[:, None] * (3 * width) + inner_H[None, :], inside_L, 0.0)
    k0, k1 = _halves(base + width, 3 * width, inner_H, rows_C, second, half, length)
    v0, v1 = _halves(base + 2 * width, 3 * width, inner_H, rows_C, second, half, length)
    incoming = gradient + text.to(tl.int64) * length * width + head * H
    do_LH = tl.load(incoming + rows_L[:, None] * width + inner_H[None, :], inside_L, 0.0)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    p0, p1 = probabilities(q_LH, k0, k1, rows_C, second, half, visible, scale, PRECISION)
    d0 = tl.dot(do_LH, tl.trans(v0), input_precision=PRECISION)
    d1 = tl.dot(do_LH, tl.trans(v1), input_precision=PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
        keep0, keep1 = kept(words_L, rows_C, threshold)
        d0 = tl.where(keep0, d0 * grow, 0.0)
        d1 = tl.where(keep1, d1 * grow, 0.0)
        mixing0 = tl.where(keep0, p0 * grow, 0.0).to(q_LH.dtype)
        mixing1 = tl.where(keep1, p1 * grow, 0.0).to(q_LH.dtype)
    else:
        mixing0 = p0.to(q_LH.dtype)
        mixing1 = p1.to(q_LH.dtype)
    dv0 = tl.dot(tl.trans(mixing0), do_LH, input_precision=PRECISION)
    dv1 = tl.dot(tl.trans(mixing1), do_LH, input_precision=PRECISION)
    delta_L = tl.sum(p0 * d0, 1) + tl.sum(p1 * d1, 1)
    s0 = (p0 * (d0 - delta_L[:, None]) * scale).to(q_LH.dtype)
    s1 = (p1 * (d1 - delta_L[:, None]) * scale).to(q_LH.dtype)
    dq = tl.dot(s0, k0, input_precision=PRECISION)
    dq += tl.dot(s1, k1, input_precision=PRECISION)
    dk0 = tl.dot(tl.trans(s0), q_LH, input_precision=PRECISION)
    dk1 = tl.dot(tl.trans(s1), q_LH, input_precision=PRECISION)
    # Each program has read all that it overwrites.
    tl.debug_barrier()
    tl.store(base + rows_L[:, None] * (3 * width) + inner_H[None, :], dq.to(q_LH.dtype), inside_L)
    tl.store(base + width + rows_C[:, None] * (3 * width) + inner_H[None, :], dk0.to(q_LH.dtype), inside_C0)
    tl.store(base + width + second[:, None] * (3 * width) + inner_H[None, :], dk1.to(q_LH.dtype), inside_C1)
    tl.store(base + 2 * width + rows_C[:, None] * (3 * width) + inner_H[None, :], dv0.to(q_LH.dtype), inside_C0)
    tl.store(base + 2 * width + second[:, None] * (3 * width) + inner_H[None, :], dv1.to(q_LH.dtype), inside_C1)
    # Rows past the end have no gradient, so nothing need be left out of the sums.
    row = sums + text * 3 * width + head * H + inner_H
    tl.store(row, tl.sum(dq, 0))
    tl.store(row + width, tl.sum(dk0 + dk1, 0))
    tl.store(row + 2 * width, tl.sum(dv0 + dv1, 0))


def attend(
    qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int, out: Tensor
) -> Tensor | None:
    """Fill `out` (T, N·H) with softmax attention of every head, dropout included.

    Returned is what the way back needs beside it, for long sequences.
    """
    if length > LONGEST:
        return flash.attend(qkv_TW, lengths_B, drop, length=length, heads=heads, out=out)
    numbers = flash.numbers(qkv_TW, lengths_B, drop, length=length, heads=heads)
    constants = _constants(qkv_TW, lengths_B, drop, length=length, heads=heads)
    _attention_forward[(len(qkv_TW) // length * heads,)](qkv_TW, out, *numbers, **constants, num_warps=WARPS)
    return None


def attend_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, mixed_TD: Tensor, level_TN: Tensor | None, lengths_B: Tensor | None,
    drop: Drop, sums_BW: Tensor, *, length: int, heads: int,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums_BW` with that gradient's sums over each text.

    `mixed_TD` and `level_TN` are what `attend` filled and returned.
    """
    if level_TN is not None:
        flash.attend_backward(
            qkv_TW, gradient_TD, mixed_TD, level_TN, lengths_B, drop, sums_BW, length=length, heads=heads
        )
        return
    numbers = flash.numbers(qkv_TW, lengths_B, drop, length=length, heads=heads)
    constants = _constants(qkv_TW, lengths_B, drop, length=length, heads=heads)
    programs = len(qkv_TW) // length * heads
    _attention_backward[(programs,)](qkv_TW, gradient_TD, sums_BW, *numbers, **constants, num_warps=WARPS)


def _constants(qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int) -> dict[str, Any]:
    block = max(32, triton.next_power_of_2(length))
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "L": block,
        "C": block // 2,
        "RAGGED": lengths_B is not None,
        "DROP": drop.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
    }
