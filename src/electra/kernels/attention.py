"""Attention over short sequences: one program holds all scores of one head of one text.

Shapes: T = B·L tokens, N heads, H head size, L length, C = half of L, columns of the scores in two halves (dropout
draws one word for an element of each). Queries, keys and values lie side by side in one (T, 3·N·H) array.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.hashing import Drop, kept, precision, row_words

WARPS = 8


@triton.jit
def _halves(pointer, row_stride, inner_H, rows_C, second, half, length):  # type: ignore[no-untyped-def]
    """(C, H) twice: the first and the second half of the rows of one (L, H) block."""
    first_CH = tl.load(pointer + rows_C[:, None] * row_stride + inner_H[None, :], (rows_C < half)[:, None], 0.0)
    second_CH = tl.load(pointer + second[:, None] * row_stride + inner_H[None, :], (second < length)[:, None], 0.0)
    return first_CH, second_CH


@triton.jit
def _probabilities(  # type: ignore[no-untyped-def]
    q_LH, k0_CH, k1_CH, rows_C, second, half, visible, scale, PRECISION: tl.constexpr
):
    """Softmax over both halves of the keys, and the logarithm of what it divided by."""
    s0 = tl.dot(q_LH, tl.trans(k0_CH), input_precision=PRECISION) * scale
    s1 = tl.dot(q_LH, tl.trans(k1_CH), input_precision=PRECISION) * scale
    s0 = tl.where(((rows_C < half) & (rows_C < visible))[None, :], s0, -1e30)
    s1 = tl.where((second < visible)[None, :], s1, -1e30)
    top = tl.maximum(tl.max(s0, 1), tl.max(s1, 1))
    p0 = tl.exp(s0 - top[:, None])
    p1 = tl.exp(s1 - top[:, None])
    total = tl.sum(p0, 1) + tl.sum(p1, 1)
    return p0 / total[:, None], p1 / total[:, None], top + tl.log(total)


@triton.jit(do_not_specialize=["site"])
def _attention_forward(  # type: ignore[no-untyped-def]
    qkv, out, level, lengths, keys, site, length, half, heads, scale, threshold, grow,
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
    p0, p1, level_L = _probabilities(q_LH, k0, k1, rows_C, second, half, visible, scale, PRECISION)
    tl.store(level + tl.program_id(0) * length + rows_L, level_L, rows_L < length)
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
        keep0, keep1 = kept(words_L, rows_C, threshold)
        p0 = tl.where(keep0, p0 * grow, 0.0)
        p1 = tl.where(keep1, p1 * grow, 0.0)
    mixed_LH = tl.dot(p0.to(v0.dtype), v0, input_precision=PRECISION)
    mixed_LH += tl.dot(p1.to(v1.dtype), v1, input_precision=PRECISION)
    target = out + text.to(tl.int64) * length * width + head * H
    tl.store(target + rows_L[:, None] * width + inner_H[None, :], mixed_LH.to(q_LH.dtype), (rows_L < length)[:, None])


@triton.jit
def _half_backward(  # type: ignore[no-untyped-def]
    q_LH, do_LH, k_CH, v_CH, dq_LH, words_L, rows_C, seen_C, level_L, delta_L, scale, threshold, grow,
    HALF: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one half of the keys adds to the queries' gradient, and that half's own gradients."""
    p_LC = tl.dot(q_LH, tl.trans(k_CH), input_precision=PRECISION) * scale
    p_LC = tl.where(seen_C[None, :], tl.exp(p_LC - level_L[:, None]), 0.0)
    d_LC = tl.dot(do_LH, tl.trans(v_CH), input_precision=PRECISION)
    mixing_LC = p_LC
    if DROP:
        # Drawn again for each half: less work than holding the bits of both.
        keep_LC = kept(words_L, rows_C, threshold)[HALF]
        d_LC = tl.where(keep_LC, d_LC * grow, 0.0)
        mixing_LC = tl.where(keep_LC, p_LC * grow, 0.0)
    dv_CH = tl.dot(tl.trans(mixing_LC.to(q_LH.dtype)), do_LH, input_precision=PRECISION)
    ds_LC = (p_LC * (d_LC - delta_L[:, None]) * scale).to(q_LH.dtype)
    dq_LH = tl.dot(ds_LC, k_CH, dq_LH, input_precision=PRECISION)
    return dq_LH, tl.dot(tl.trans(ds_LC), q_LH, input_precision=PRECISION), dv_CH


@triton.jit(do_not_specialize=["site"])
def _attention_backward(  # type: ignore[no-untyped-def]
    qkv, gradient, mixed, level, sums, lengths, keys, site, length, half, heads, scale, threshold, grow,
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
    place_L = text.to(tl.int64) * length * width + head * H + rows_L[:, None] * width + inner_H[None, :]
    do_LH = tl.load(gradient + place_L, inside_L, 0.0)
    # What the probabilities' gradients have in common is what the output's gradient says of the output.
    delta_L = tl.sum(do_LH.to(tl.float32) * tl.load(mixed + place_L, inside_L, 0.0).to(tl.float32), 1)
    level_L = tl.load(level + tl.program_id(0) * length + rows_L, rows_L < length, 0.0)
    q_LH = tl.load(base + rows_L[:, None] * (3 * width) + inner_H[None, :], inside_L, 0.0)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    words_L = rows_L
    if DROP:
        words_L = row_words(tl.load(keys + text), site, head * length + rows_L)
    dq = tl.zeros([L, H], tl.float32)
    first = base + width + rows_C[:, None] * (3 * width) + inner_H[None, :]
    inside_C = (rows_C < half)[:, None]
    k = tl.load(first, inside_C, 0.0)
    v = tl.load(first + width, inside_C, 0.0)
    seen_C = (rows_C < half) & (rows_C < visible)
    dq, dk, dv = _half_backward(
        q_LH, do_LH, k, v, dq, words_L, rows_C, seen_C, level_L, delta_L, scale, threshold, grow, 0, DROP, PRECISION
    )
    # Each program alone reads what it overwrites, and has read it.
    tl.store(first, dk.to(q_LH.dtype), inside_C)
    tl.store(first + width, dv.to(q_LH.dtype), inside_C)
    dk_sum = tl.sum(tl.where(inside_C, dk, 0.0), 0)
    dv_sum = tl.sum(tl.where(inside_C, dv, 0.0), 0)
    other = base + width + second[:, None] * (3 * width) + inner_H[None, :]
    inside_C = (second < length)[:, None]
    k = tl.load(other, inside_C, 0.0)
    v = tl.load(other + width, inside_C, 0.0)
    seen_C = second < visible
    dq, dk, dv = _half_backward(
        q_LH, do_LH, k, v, dq, words_L, rows_C, seen_C, level_L, delta_L, scale, threshold, grow, 1, DROP, PRECISION
    )
    tl.store(other, dk.to(q_LH.dtype), inside_C)
    tl.store(other + width, dv.to(q_LH.dtype), inside_C)
    dk_sum += tl.sum(tl.where(inside_C, dk, 0.0), 0)
    dv_sum += tl.sum(tl.where(inside_C, dv, 0.0), 0)
    tl.debug_barrier()
    tl.store(base + rows_L[:, None] * (3 * width) + inner_H[None, :], dq.to(q_LH.dtype), inside_L)
    row = sums + text * 3 * width + head * H + inner_H
    tl.store(row, tl.sum(tl.where(inside_L, dq, 0.0), 0))
    tl.store(row + width, dk_sum)
    tl.store(row + 2 * width, dv_sum)


def attend(qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int, out: Tensor) -> Tensor:
    """Fill `out` (T, N·H) with softmax attention of every head, dropout included.

    Returned is what the way back needs: the logarithm of what each row's softmax divided by.
    """
    tokens = len(qkv_TW)
    level_TN = torch.empty(tokens * heads, dtype=torch.float32, device=qkv_TW.device)
    arguments, constants = _arguments(qkv_TW, lengths_B, drop, length=length, heads=heads)
    _attention_forward[(tokens // length * heads,)](qkv_TW, out, level_TN, *arguments, **constants, num_warps=WARPS)
    return level_TN


def attend_backward(
    qkv_TW: Tensor,
    gradient_TD: Tensor,
    mixed_TD: Tensor,
    level_TN: Tensor,
    lengths_B: Tensor | None,
    drop: Drop,
    sums_BW: Tensor,
    *,
    length: int,
    heads: int,
) -> None:
    """Overwrite `qkv_TW` with its gradient, and `sums_BW` with that gradient's sums over each text.

    `mixed_TD` and `level_TN` are what `attend` filled and gave.
    """
    arguments, constants = _arguments(qkv_TW, lengths_B, drop, length=length, heads=heads)
    programs = qkv_TW.shape[0] // length * heads
    _attention_backward[(programs,)](
        qkv_TW, gradient_TD, mixed_TD, level_TN, sums_BW, *arguments, **constants, num_warps=WARPS
    )


def _arguments(
    qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    head = qkv_TW.shape[1] // 3 // heads
    block = max(32, triton.next_power_of_2(length))
    unused = qkv_TW
    arguments = (
        unused if lengths_B is None else lengths_B,
        unused if drop.keys_B is None else drop.keys_B,
        drop.site, length, (length + 1) // 2, heads, head**-0.5, drop.threshold, drop.grow,
    )  # fmt: skip
    constants = {
        "H": head,
        "L": block,
        "C": block // 2,
        "RAGGED": lengths_B is not None,
        "DROP": drop.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
    }
    return arguments, constants
