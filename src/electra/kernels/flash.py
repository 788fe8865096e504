"""Attention over long sequences: a program holds a block of queries, or of keys, and goes over the other side.

Short sequences take `attention`, which holds all scores of a head at once. Dropout's bits are the same in both. Where
documents stand end to end, a program goes over what its block's documents hold, and over no other block. PyTorch's
attention over such rows (`torch.nn.attention.varlen`) knows no dropout.

Shapes: T = B·L tokens, N heads, H head size, Q queries of a block, K keys of a block. Queries, keys and values lie side
by side in one (T, 3·N·H) array.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.sequences import Spans
from electra.kernels.hashing import Drop, kept, precision, row_words, word

QUERIES, KEYS = 64, 64
"""Of a block: small enough that a multiprocessor has two or three to go between."""
WARPS = 4


@triton.jit
def _rows(pointer, rows, stride, inner_H, length):  # type: ignore[no-untyped-def]
    return tl.load(pointer + rows[:, None] * stride + inner_H[None, :], (rows < length)[:, None], 0.0)


@triton.jit
def _spans(begins, ends, text, rows, length):  # type: ignore[no-untyped-def]
    """Where what each row sees begins and ends; rows past the end see nothing."""
    place, inside = text * length + rows, rows < length
    return tl.load(begins + place, inside, length), tl.load(ends + place, inside, 0)


@triton.jit(do_not_specialize=["site"])
def _flash_forward(  # type: ignore[no-untyped-def]
    qkv, out, level, begins, ends, lengths, keys, site, length, heads, scale, threshold, grow,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_Q = tl.program_id(1) * Q + tl.arange(0, Q)
    base = qkv + text.to(tl.int64) * length * 3 * width + head * H
    q_QH = _rows(base, rows_Q, 3 * width, inner_H, length)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    start, stop = 0, visible
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, text, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)  # even: see `kept`
    words_Q = word(rows_Q)
    if DROP:
        words_Q = row_words(tl.load(keys + text), site, head * length + rows_Q)
    top_Q = tl.full([Q], -1e30, tl.float32)
    total_Q = tl.zeros([Q], tl.float32)
    mixed_QH = tl.zeros([Q, H], tl.float32)
    for first in range(start, stop, K):
        keys_K = first + tl.arange(0, K)
        k_KH = _rows(base + width, keys_K, 3 * width, inner_H, length)
        v_KH = _rows(base + 2 * width, keys_K, 3 * width, inner_H, length)
        s_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION) * scale
        seen_QK = (keys_K < visible)[None, :]
        if SPANS:
            seen_QK = (keys_K[None, :] >= begin_Q[:, None]) & (keys_K[None, :] < end_Q[:, None])
        # A row that has seen nothing yet takes shares of 1 for what it does not see; the first that it sees wipes them.
        s_QK = tl.where(seen_QK, s_QK, -1e30)
        higher_Q = tl.maximum(top_Q, tl.max(s_QK, 1))
        p_QK = tl.exp(s_QK - higher_Q[:, None])
        shrink_Q = tl.exp(top_Q - higher_Q)
        total_Q = total_Q * shrink_Q + tl.sum(p_QK, 1)
        if DROP:
            p_QK = tl.where(kept(words_Q, first, threshold, K), p_QK * grow, 0.0)
        mixed_QH = mixed_QH * shrink_Q[:, None]
        mixed_QH = tl.dot(p_QK.to(v_KH.dtype), v_KH, mixed_QH, input_precision=PRECISION)
        top_Q = higher_Q
    mixed_QH = mixed_QH / tl.maximum(total_Q, 1e-37)[:, None]  # a text of no tokens has no total
    inside = (rows_Q < length)[:, None]
    target = out + text.to(tl.int64) * length * width + head * H
    tl.store(target + rows_Q[:, None] * width + inner_H[None, :], mixed_QH.to(q_QH.dtype), inside)
    tl.store(level + tl.program_id(0) * length + rows_Q, top_Q + tl.log(tl.maximum(total_Q, 1e-37)), rows_Q < length)


@triton.jit
def _scores_back(  # type: ignore[no-untyped-def]
    q_QH, k_KH, v_KH, do_QH, level_Q, delta_Q, words_Q, first, seen_QK, scale, threshold, grow,
    K: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(Q, K) the shares that mixed the values, and the gradient of the scores; the keys are those from `first` on."""
    p_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION) * scale
    p_QK = tl.where(seen_QK, tl.exp(p_QK - level_Q[:, None]), 0.0)
    d_QK = tl.dot(do_QH, tl.trans(v_KH), input_precision=PRECISION)
    mixing_QK = p_QK
    if DROP:
        keep_QK = kept(words_Q, first, threshold, K)
        d_QK = tl.where(keep_QK, d_QK * grow, 0.0)
        mixing_QK = tl.where(keep_QK, p_QK * grow, 0.0)
    return mixing_QK.to(q_QH.dtype), (p_QK * (d_QK - delta_Q[:, None]) * scale).to(q_QH.dtype)


@triton.jit
def _row_facts(  # type: ignore[no-untyped-def]
    gradient, mixed, level, keys, site, text, head, rows_Q, length, heads,
    H: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Of a block of queries: the output's gradient, the log-sum, what the gradients share, dropout's words."""
    inner_H = tl.arange(0, H)
    place = text.to(tl.int64) * length * heads * H + head * H
    do_QH = _rows(gradient + place, rows_Q, heads * H, inner_H, length)
    out_QH = _rows(mixed + place, rows_Q, heads * H, inner_H, length)
    level_Q = tl.load(level + (text * heads + head) * length + rows_Q, rows_Q < length, 0.0)
    # What the gradients of a row's shares have in common is what the output's gradient says of the output.
    delta_Q = tl.sum(do_QH.to(tl.float32) * out_QH.to(tl.float32), 1)
    words_Q = word(rows_Q)
    if DROP:
        words_Q = row_words(tl.load(keys + text), site, head * length + rows_Q)
    return do_QH, level_Q, delta_Q, words_Q


@triton.jit(do_not_specialize=["site"])
def _flash_backward_queries(  # type: ignore[no-untyped-def]
    qkv, d_qkv, gradient, mixed, level, begins, ends, lengths, keys, site, length, heads, scale, threshold, grow,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    rows_Q = tl.program_id(1) * Q + tl.arange(0, Q)
    corner = text.to(tl.int64) * length * 3 * width + head * H
    base = qkv + corner
    q_QH = _rows(base, rows_Q, 3 * width, inner_H, length)
    do_QH, level_Q, delta_Q, words_Q = _row_facts(
        gradient, mixed, level, keys, site, text, head, rows_Q, length, heads, H, DROP
    )
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    start, stop = 0, visible
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, text, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)
    dq_QH = tl.zeros([Q, H], tl.float32)
    for first in range(start, stop, K):
        keys_K = first + tl.arange(0, K)
        k_KH = _rows(base + width, keys_K, 3 * width, inner_H, length)
        v_KH = _rows(base + 2 * width, keys_K, 3 * width, inner_H, length)
        seen_QK = (keys_K < visible)[None, :]
        if SPANS:
            seen_QK = (keys_K[None, :] >= begin_Q[:, None]) & (keys_K[None, :] < end_Q[:, None])
        _, ds_QK = _scores_back(
            q_QH, k_KH, v_KH, do_QH, level_Q, delta_Q, words_Q, first, seen_QK, scale, threshold, grow,
            K, DROP, PRECISION,
        )  # fmt: skip
        dq_QH = tl.dot(ds_QK, k_KH, dq_QH, input_precision=PRECISION)
    target = d_qkv + corner + rows_Q[:, None] * (3 * width) + inner_H[None, :]
    tl.store(target, dq_QH.to(q_QH.dtype), (rows_Q < length)[:, None])


@triton.jit(do_not_specialize=["site"])
def _flash_backward_keys(  # type: ignore[no-untyped-def]
    qkv, d_qkv, gradient, mixed, level, begins, ends, lengths, keys, site, length, heads, scale, threshold, grow,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    inner_H = tl.arange(0, H)
    keys_K = tl.program_id(1) * K + tl.arange(0, K)
    corner = text.to(tl.int64) * length * 3 * width + head * H
    base = qkv + corner
    k_KH = _rows(base + width, keys_K, 3 * width, inner_H, length)
    v_KH = _rows(base + 2 * width, keys_K, 3 * width, inner_H, length)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    dk_KH = tl.zeros([K, H], tl.float32)
    dv_KH = tl.zeros([K, H], tl.float32)
    # Keys that nobody sees have no gradient.
    start, stop = 0, tl.where(tl.program_id(1) * K < visible, length, 0)
    if SPANS:
        begin_K, end_K = _spans(begins, ends, text, keys_K, length)
        start, stop = tl.min(begin_K, 0), tl.max(end_K, 0)
    for first in range(start, stop, Q):
        rows_Q = first + tl.arange(0, Q)
        q_QH = _rows(base, rows_Q, 3 * width, inner_H, length)
        do_QH, level_Q, delta_Q, words_Q = _row_facts(
            gradient, mixed, level, keys, site, text, head, rows_Q, length, heads, H, DROP
        )
        seen_QK = (keys_K < visible)[None, :]
        if SPANS:  # who is seen by a token is whom it sees
            seen_QK = (rows_Q[:, None] >= begin_K[None, :]) & (rows_Q[:, None] < end_K[None, :])
        mixing_QK, ds_QK = _scores_back(
            q_QH, k_KH, v_KH, do_QH, level_Q, delta_Q, words_Q, tl.program_id(1) * K, seen_QK, scale, threshold, grow,
            K, DROP, PRECISION,
        )  # fmt: skip
        dv_KH = tl.dot(tl.trans(mixing_QK), do_QH, dv_KH, input_precision=PRECISION)
        dk_KH = tl.dot(tl.trans(ds_QK), q_QH, dk_KH, input_precision=PRECISION)
    target = d_qkv + corner + width + keys_K[:, None] * (3 * width) + inner_H[None, :]
    inside = (keys_K < length)[:, None]
    tl.store(target, dk_KH.to(k_KH.dtype), inside)
    tl.store(target + width, dv_KH.to(k_KH.dtype), inside)


def attend(
    qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int, out: Tensor,
    spans: Spans | None = None,
) -> Tensor:  # fmt: skip
    """Fill `out` (T, N·H) with softmax attention of every head, dropout included.

    With `spans`, (B, L) arrays of int32 without gaps, lengths play no part. Returned is what the way back needs: the
    logarithm of what each row's softmax divided by.
    """
    programs = len(qkv_TW) // length * heads
    level_TN = torch.empty(len(qkv_TW) * heads, dtype=torch.float32, device=qkv_TW.device)
    _flash_forward[(programs, triton.cdiv(length, QUERIES))](
        qkv_TW, out, level_TN, *_pointers(qkv_TW, spans),
        *numbers(qkv_TW, lengths_B, drop, length=length, heads=heads),
        **_constants(qkv_TW, lengths_B, spans, drop, heads=heads), num_warps=WARPS,
    )  # fmt: skip
    return level_TN


def attend_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, mixed_TD: Tensor, level_TN: Tensor, lengths_B: Tensor | None, drop: Drop,
    sums_BW: Tensor, *, length: int, heads: int, spans: Spans | None = None,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums_BW` with that gradient's sums over each text.

    `mixed_TD` and `level_TN` are what `attend` filled and returned.
    """
    programs = len(qkv_TW) // length * heads
    d_qkv_TW = torch.empty_like(qkv_TW)  # every block reads what others have the gradients of
    for kernel, block in ((_flash_backward_queries, QUERIES), (_flash_backward_keys, KEYS)):
        kernel[(programs, triton.cdiv(length, block))](
            qkv_TW, d_qkv_TW, gradient_TD, mixed_TD, level_TN, *_pointers(qkv_TW, spans),
            *numbers(qkv_TW, lengths_B, drop, length=length, heads=heads),
            **_constants(qkv_TW, lengths_B, spans, drop, heads=heads), num_warps=WARPS,
        )  # fmt: skip
    qkv_TW.copy_(d_qkv_TW)
    torch.sum(d_qkv_TW.view(-1, length, qkv_TW.shape[1]), 1, dtype=torch.float32, out=sums_BW)


def numbers(
    qkv_TW: Tensor, lengths_B: Tensor | None, drop: Drop, *, length: int, heads: int
) -> tuple[Tensor | int | float, ...]:
    """What attention's kernels are told, long and short, after their arrays."""
    head = qkv_TW.shape[1] // 3 // heads
    unused = qkv_TW
    return (
        unused if lengths_B is None else lengths_B,
        unused if drop.keys_B is None else drop.keys_B,
        drop.site, length, heads, head**-0.5, drop.threshold, drop.grow,
    )  # fmt: skip


def _pointers(unused: Tensor, spans: Spans | None) -> tuple[Tensor, ...]:
    return (unused, unused) if spans is None else spans


def _constants(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, drop: Drop, *, heads: int
) -> dict[str, Any]:
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "Q": QUERIES,
        "K": KEYS,
        "RAGGED": lengths_B is not None and spans is None,
        "SPANS": spans is not None,
        "DROP": drop.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
    }
