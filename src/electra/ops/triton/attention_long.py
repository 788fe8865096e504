"""Attention over sequences of any length: a program holds a block of queries, or of keys, and loops over the others.

context = dropout(softmax(q·kᵀ / √H)) · v for every head, with a running maximum and sum (online softmax); forward
saves each row's log-sum-exp. Backward is one kernel for the queries' gradient and one for the keys' and values'. Where
documents are packed, a block loops over its own documents only. (`torch.nn.attention.varlen` has no dropout.)
Reference: `reference/attention.py`, between its two products.

Shapes: B sequences, T = B·L tokens, N heads, H head size, Q queries of a block, K keys of a block. Queries, keys and
values lie side by side in one (T, W = 3·N·H) array.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops.triton.attention import numeric_arguments, precision
from electra.ops.triton.hash import Dropout, keep_mask, row_bits, unsigned

_QUERIES, _KEYS = 64, 64
"""Of a block: small enough that a multiprocessor has two or three to switch between."""
_WARPS = 4


@triton.jit
def _rows(pointer, rows, stride, unit_H, length):  # type: ignore[no-untyped-def]
    return tl.load(pointer + rows[:, None] * stride + unit_H[None, :], (rows < length)[:, None], 0.0)


@triton.jit
def _spans(begins, ends, sequence, rows, length):  # type: ignore[no-untyped-def]
    """Where each row's document begins and ends; rows past the end have none."""
    offset, inside = sequence * length + rows, rows < length
    return tl.load(begins + offset, inside, length), tl.load(ends + offset, inside, 0)


@triton.jit(do_not_specialize=["address"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv,  # (T, 3·N·H)
    out,  # (T, N·H)
    lse,  # (B·N, L) fp32
    begins, ends,  # (B, L) int32 spans
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    rows_Q = tl.program_id(1) * Q + tl.arange(0, Q)
    base = qkv + sequence.to(tl.int64) * length * 3 * width + head * H
    q_QH = _rows(base, rows_Q, 3 * width, unit_H, length)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    start, stop = 0, valid
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, sequence, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)  # even: see `keep_mask`
    bits_Q = unsigned(rows_Q)
    if DROPOUT:
        bits_Q = row_bits(tl.load(keys + sequence), address, head * length + rows_Q)
    top_Q = tl.full([Q], -1e30, tl.float32)
    total_Q = tl.zeros([Q], tl.float32)
    context_QH = tl.zeros([Q, H], tl.float32)
    for first in range(start, stop, K):
        keys_K = first + tl.arange(0, K)
        k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length)
        v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length)
        s_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION) * scale
        visible_QK = (keys_K < valid)[None, :]
        if SPANS:
            visible_QK = (keys_K[None, :] >= begin_Q[:, None]) & (keys_K[None, :] < end_Q[:, None])
        # Before its first visible key a row sums up weights of 1; that key then scales them to 0.
        s_QK = tl.where(visible_QK, s_QK, -1e30)
        higher_Q = tl.maximum(top_Q, tl.max(s_QK, 1))
        p_QK = tl.exp(s_QK - higher_Q[:, None])
        shrink_Q = tl.exp(top_Q - higher_Q)
        total_Q = total_Q * shrink_Q + tl.sum(p_QK, 1)
        if DROPOUT:
            p_QK = tl.where(keep_mask(bits_Q, first, drop_threshold, K), p_QK * dropout_scale, 0.0)
        context_QH = context_QH * shrink_Q[:, None]
        context_QH = tl.dot(p_QK.to(v_KH.dtype), v_KH, context_QH, input_precision=PRECISION)
        top_Q = higher_Q
    context_QH = context_QH / tl.maximum(total_Q, 1e-37)[:, None]  # a sequence of no tokens has no total
    inside = (rows_Q < length)[:, None]
    target = out + sequence.to(tl.int64) * length * width + head * H
    tl.store(target + rows_Q[:, None] * width + unit_H[None, :], context_QH.to(q_QH.dtype), inside)
    tl.store(lse + tl.program_id(0) * length + rows_Q, top_Q + tl.log(tl.maximum(total_Q, 1e-37)), rows_Q < length)


@triton.jit
def _scores_backward(  # type: ignore[no-untyped-def]
    q_QH, k_KH, v_KH, do_QH, lse_Q, delta_Q, bits_Q, first, visible_QK, scale, drop_threshold, dropout_scale,
    K: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(Q, K) attention weights after dropout, and the gradient of the scores; the keys are those from `first` on."""
    p_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION) * scale
    p_QK = tl.where(visible_QK, tl.exp(p_QK - lse_Q[:, None]), 0.0)
    d_QK = tl.dot(do_QH, tl.trans(v_KH), input_precision=PRECISION)
    weights_QK = p_QK
    if DROPOUT:
        keep_QK = keep_mask(bits_Q, first, drop_threshold, K)
        d_QK = tl.where(keep_QK, d_QK * dropout_scale, 0.0)
        weights_QK = tl.where(keep_QK, p_QK * dropout_scale, 0.0)
    return weights_QK.to(q_QH.dtype), (p_QK * (d_QK - delta_Q[:, None]) * scale).to(q_QH.dtype)


@triton.jit
def _query_rows(  # type: ignore[no-untyped-def]
    gradient, context, lse, keys, address, sequence, head, rows_Q, length, heads,
    H: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Of a block of queries: the output's gradient, its log-sum-exp, Σ gradient · output, dropout's random bits."""
    unit_H = tl.arange(0, H)
    offset = sequence.to(tl.int64) * length * heads * H + head * H
    do_QH = _rows(gradient + offset, rows_Q, heads * H, unit_H, length)
    out_QH = _rows(context + offset, rows_Q, heads * H, unit_H, length)
    lse_Q = tl.load(lse + (sequence * heads + head) * length + rows_Q, rows_Q < length, 0.0)
    # Σ over a row's weights of weight · gradient equals Σ over the head of output · gradient.
    delta_Q = tl.sum(do_QH.to(tl.float32) * out_QH.to(tl.float32), 1)
    bits_Q = unsigned(rows_Q)
    if DROPOUT:
        bits_Q = row_bits(tl.load(keys + sequence), address, head * length + rows_Q)
    return do_QH, lse_Q, delta_Q, bits_Q


@triton.jit(do_not_specialize=["address"])
def _backward_queries_kernel(  # type: ignore[no-untyped-def]
    qkv, d_qkv,  # (T, 3·N·H)
    gradient, context,  # (T, N·H)
    lse,  # (B·N, L) fp32
    begins, ends,  # (B, L) int32 spans
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    rows_Q = tl.program_id(1) * Q + tl.arange(0, Q)
    corner = sequence.to(tl.int64) * length * 3 * width + head * H
    base = qkv + corner
    q_QH = _rows(base, rows_Q, 3 * width, unit_H, length)
    do_QH, lse_Q, delta_Q, bits_Q = _query_rows(
        gradient, context, lse, keys, address, sequence, head, rows_Q, length, heads, H, DROPOUT
    )
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    start, stop = 0, valid
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, sequence, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)
    dq_QH = tl.zeros([Q, H], tl.float32)
    for first in range(start, stop, K):
        keys_K = first + tl.arange(0, K)
        k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length)
        v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length)
        visible_QK = (keys_K < valid)[None, :]
        if SPANS:
            visible_QK = (keys_K[None, :] >= begin_Q[:, None]) & (keys_K[None, :] < end_Q[:, None])
        _, ds_QK = _scores_backward(
            q_QH, k_KH, v_KH, do_QH, lse_Q, delta_Q, bits_Q, first, visible_QK, scale, drop_threshold, dropout_scale,
            K, DROPOUT, PRECISION,
        )  # fmt: skip
        dq_QH = tl.dot(ds_QK, k_KH, dq_QH, input_precision=PRECISION)
    target = d_qkv + corner + rows_Q[:, None] * (3 * width) + unit_H[None, :]
    tl.store(target, dq_QH.to(q_QH.dtype), (rows_Q < length)[:, None])


@triton.jit(do_not_specialize=["address"])
def _backward_keys_kernel(  # type: ignore[no-untyped-def]
    qkv, d_qkv,  # (T, 3·N·H)
    gradient, context,  # (T, N·H)
    lse,  # (B·N, L) fp32
    begins, ends,  # (B, L) int32 spans
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    keys_K = tl.program_id(1) * K + tl.arange(0, K)
    corner = sequence.to(tl.int64) * length * 3 * width + head * H
    base = qkv + corner
    k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length)
    v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    dk_KH = tl.zeros([K, H], tl.float32)
    dv_KH = tl.zeros([K, H], tl.float32)
    # Keys that are padding have no gradient.
    start, stop = 0, tl.where(tl.program_id(1) * K < valid, length, 0)
    if SPANS:
        begin_K, end_K = _spans(begins, ends, sequence, keys_K, length)
        start, stop = tl.min(begin_K, 0), tl.max(end_K, 0)
    for first in range(start, stop, Q):
        rows_Q = first + tl.arange(0, Q)
        q_QH = _rows(base, rows_Q, 3 * width, unit_H, length)
        do_QH, lse_Q, delta_Q, bits_Q = _query_rows(
            gradient, context, lse, keys, address, sequence, head, rows_Q, length, heads, H, DROPOUT
        )
        visible_QK = (keys_K < valid)[None, :]
        if SPANS:  # visibility is symmetric
            visible_QK = (rows_Q[:, None] >= begin_K[None, :]) & (rows_Q[:, None] < end_K[None, :])
        weights_QK, ds_QK = _scores_backward(
            q_QH, k_KH, v_KH, do_QH, lse_Q, delta_Q, bits_Q, tl.program_id(1) * K, visible_QK, scale, drop_threshold,
            dropout_scale, K, DROPOUT, PRECISION,
        )  # fmt: skip
        dv_KH = tl.dot(tl.trans(weights_QK), do_QH, dv_KH, input_precision=PRECISION)
        dk_KH = tl.dot(tl.trans(ds_QK), q_QH, dk_KH, input_precision=PRECISION)
    target = d_qkv + corner + width + keys_K[:, None] * (3 * width) + unit_H[None, :]
    inside = (keys_K < length)[:, None]
    tl.store(target, dk_KH.to(k_KH.dtype), inside)
    tl.store(target + width, dv_KH.to(k_KH.dtype), inside)


def attention_forward(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout,
    *, length: int, heads: int, out: Tensor, lse: Tensor,
) -> None:  # fmt: skip
    """Fill `out` (T, N·H) with the context of every head, and `lse` with each row's log-sum-exp.

    With `spans`, contiguous (B, L) arrays of int32, lengths are ignored.
    """
    programs = len(qkv_TW) // length * heads
    _forward_kernel[(programs, triton.cdiv(length, _QUERIES))](
        qkv_TW, out, lse, *_pointers(qkv_TW, spans),
        *numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads),
        **_constants(qkv_TW, lengths_B, spans, dropout, heads),
    )  # fmt: skip


def attention_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, context_TD: Tensor, lse_TN: Tensor, lengths_B: Tensor | None,
    spans: Spans | None, dropout: Dropout, *, length: int, heads: int, sums: Tensor,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums` (B, W) with that gradient's sums over each sequence.

    `context_TD` and `lse_TN` are what `attention_forward` filled.
    """
    programs = len(qkv_TW) // length * heads
    d_qkv_TW = torch.empty_like(qkv_TW)  # every block reads q, k or v whose gradients others write
    for kernel, block in ((_backward_queries_kernel, _QUERIES), (_backward_keys_kernel, _KEYS)):
        kernel[(programs, triton.cdiv(length, block))](
            qkv_TW, d_qkv_TW, gradient_TD, context_TD, lse_TN, *_pointers(qkv_TW, spans),
            *numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads),
            **_constants(qkv_TW, lengths_B, spans, dropout, heads),
        )  # fmt: skip
    qkv_TW.copy_(d_qkv_TW)
    torch.sum(d_qkv_TW.view(-1, length, qkv_TW.shape[1]), 1, dtype=torch.float32, out=sums)


def _pointers(unused: Tensor, spans: Spans | None) -> tuple[Tensor, ...]:
    return (unused, unused) if spans is None else spans


def _constants(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout, heads: int
) -> dict[str, Any]:
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "Q": _QUERIES,
        "K": _KEYS,
        "RAGGED": lengths_B is not None and spans is None,
        "SPANS": spans is not None,
        "DROPOUT": dropout.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
        "num_warps": _WARPS,
    }
