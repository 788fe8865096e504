"""Attention over sequences of any length: a program holds a block of queries, or of keys, and loops over the others.

context = dropout(softmax(q·kᵀ / √H)) · v for every head, with a running maximum and sum (online softmax); forward
saves each row's log-sum-exp, base 2. Backward is one kernel for the queries' gradient and one for the keys' and
values'. Only blocks at the end of a sequence are masked; where documents are packed, a block loops over its own
documents only. (`torch.nn.attention.varlen` has no dropout.)
Reference: `reference/attention.py`, between its two products.

Shapes: B sequences, T = B·L tokens, N heads, H head size, Q queries of a block, K keys of a block. Queries, keys and
values lie side by side in one (T, W = 3·N·H) array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops.triton.attention import numeric_arguments, precision
from electra.ops.triton.hash import Dropout, keep_mask, keep_mask_of_pairs, row_bits, unsigned

LOG2_E: Any = tl.constexpr(1.4426950408889634)


class Blocks(NamedTuple):
    """Of a kernel: queries and keys of a block, warps of a program, stages of its loads."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD, BACKWARD_QUERIES, BACKWARD_KEYS = Blocks(128, 64, 8, 3), Blocks(64, 32, 4, 3), Blocks(32, 64, 4, 3)
"""The fastest of some ten each on an H200, at 512 tokens and heads of 64."""
FORWARD_DOCUMENTS = Blocks(64, 64, 4, 3)  # a larger block of queries would read more documents


@triton.jit
def _rows(pointer, rows, stride, unit_H, length, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    offset = pointer + rows[:, None] * stride + unit_H[None, :]
    if MASKED:
        return tl.load(offset, (rows < length)[:, None], 0.0)
    return tl.load(offset)


@triton.jit
def _spans(begins, ends, sequence, rows, length):  # type: ignore[no-untyped-def]
    """Where each row's document begins and ends; rows past the end have none."""
    offset, inside = sequence * length + rows, rows < length
    return tl.load(begins + offset, inside, length), tl.load(ends + offset, inside, 0)


@triton.jit
def _visible(keys_K, valid, begin_Q, end_Q, SPANS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which keys a query sees: (Q, K) those of its document, or for all queries (1, K) those that are no padding."""
    if SPANS:
        visible = (keys_K[None, :] >= begin_Q[:, None]) & (keys_K[None, :] < end_Q[:, None])
    else:  # two returns would have to be of one shape
        visible = (keys_K < valid)[None, :]
    return visible


@triton.jit
def _forward_block(  # type: ignore[no-untyped-def]
    q_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, scale_2, drop_threshold, first,
    top_Q, total_Q, context_QH,
    K: tl.constexpr, SPANS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Running maximum, sum and context with the keys from `first` on; scores are of base 2."""
    keys_K = first + tl.arange(0, K)
    k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length, MASKED)
    v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length, MASKED)
    s_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION)
    if MASKED:
        # Before its first visible key a row sums up weights of 1; that key then scales them to 0. Of -1e30 times the
        # scale, less the same rounded, a fused multiply-add would leave 8e20 with heads of 64: an infinite weight.
        s_QK = tl.where(_visible(keys_K, valid, begin_Q, end_Q, SPANS), s_QK * scale_2, -1e30)
        higher_Q = tl.maximum(top_Q, tl.max(s_QK, 1))
        p_QK = tl.exp2(s_QK - higher_Q[:, None])
    else:
        higher_Q = tl.maximum(top_Q, tl.max(s_QK, 1) * scale_2)
        p_QK = tl.exp2(s_QK * scale_2 - higher_Q[:, None])
    shrink_Q = tl.exp2(top_Q - higher_Q)
    total_Q = total_Q * shrink_Q + tl.sum(p_QK, 1)
    if DROPOUT:
        p_QK = tl.where(keep_mask(bits_Q, first, drop_threshold, K), p_QK, 0.0)
    context_QH = context_QH * shrink_Q[:, None]
    context_QH = tl.dot(p_QK.to(v_KH.dtype), v_KH, context_QH, input_precision=PRECISION)
    return higher_Q, total_Q, context_QH


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
    q_QH = _rows(base, rows_Q, 3 * width, unit_H, length, True)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    begin_Q, end_Q = rows_Q, rows_Q
    bits_Q = unsigned(rows_Q)
    if DROPOUT:
        bits_Q = row_bits(tl.load(keys + sequence), address, head * length + rows_Q)
    top_Q = tl.full([Q], -1e30, tl.float32)
    total_Q = tl.zeros([Q], tl.float32)
    context_QH = tl.zeros([Q, H], tl.float32)
    scale_2 = scale * LOG2_E
    start, full, stop = 0, valid // K * K, valid
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, sequence, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)  # even: see `keep_mask`
    else:
        for first in range(0, full, K):
            top_Q, total_Q, context_QH = _forward_block(
                q_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, scale_2, drop_threshold, first,
                top_Q, total_Q, context_QH, K, SPANS, DROPOUT, PRECISION, False,
            )  # fmt: skip
        start = full
    for first in range(start, stop, K):
        top_Q, total_Q, context_QH = _forward_block(
            q_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, scale_2, drop_threshold, first,
            top_Q, total_Q, context_QH, K, SPANS, DROPOUT, PRECISION, True,
        )  # fmt: skip
    total_Q = tl.maximum(total_Q, 1e-37)  # a sequence of no tokens has no total
    factor_Q = dropout_scale / total_Q
    inside = (rows_Q < length)[:, None]
    target = out + sequence.to(tl.int64) * length * width + head * H + rows_Q[:, None] * width + unit_H[None, :]
    tl.store(target, (context_QH * factor_Q[:, None]).to(q_QH.dtype), inside)
    tl.store(lse + tl.program_id(0) * length + rows_Q, top_Q + tl.log2(total_Q), rows_Q < length)


@triton.jit
def _backward_queries_block(  # type: ignore[no-untyped-def]
    q_QH, do_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, lse_Q, delta_Q, scale_2, drop_threshold,
    first, dq_QH,
    K: tl.constexpr, SPANS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds what the keys from `first` on give to the queries' gradient, but for a factor."""
    keys_K = first + tl.arange(0, K)
    k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length, MASKED)
    v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length, MASKED)
    s_QK = tl.dot(q_QH, tl.trans(k_KH), input_precision=PRECISION)
    d_QK = tl.dot(do_QH, tl.trans(v_KH), input_precision=PRECISION)
    p_QK = tl.exp2(s_QK * scale_2 - lse_Q[:, None])
    if MASKED:
        p_QK = tl.where(_visible(keys_K, valid, begin_Q, end_Q, SPANS), p_QK, 0.0)
    if DROPOUT:
        d_QK = tl.where(keep_mask(bits_Q, first, drop_threshold, K), d_QK, 0.0)
    ds_QK = p_QK * (d_QK - delta_Q[:, None])
    return tl.dot(ds_QK.to(k_KH.dtype), k_KH, dq_QH, input_precision=PRECISION)


@triton.jit(do_not_specialize=["address"])
def _backward_queries_kernel(  # type: ignore[no-untyped-def]
    qkv,  # (T, 3·N·H)
    d_q,  # (T, N·H)
    gradient, context,  # (T, N·H)
    lse,  # (B·N, L) fp32
    delta,  # (B·N, L) fp32, filled: Σ gradient · output, over the scale of dropout
    bits,  # (B·N, L) int32, filled: dropout's random bits of each row
    sums,  # (B, blocks, 3·N·H) fp32 sums of the gradient over each block
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
    q_QH = _rows(base, rows_Q, 3 * width, unit_H, length, True)
    corner = sequence.to(tl.int64) * length * width + head * H
    do_QH = _rows(gradient + corner, rows_Q, width, unit_H, length, True)
    out_QH = _rows(context + corner, rows_Q, width, unit_H, length, True)
    row = tl.program_id(0) * length + rows_Q
    lse_Q = tl.load(lse + row, rows_Q < length, 0.0)
    # Σ over a row's weights of weight · gradient equals Σ over the head of output · gradient.
    delta_Q = tl.sum(do_QH.to(tl.float32) * out_QH.to(tl.float32), 1) / dropout_scale
    tl.store(delta + row, delta_Q, rows_Q < length)
    bits_Q = unsigned(rows_Q)
    if DROPOUT:
        bits_Q = row_bits(tl.load(keys + sequence), address, head * length + rows_Q)
        tl.store(bits + row, bits_Q.to(tl.int32, bitcast=True), rows_Q < length)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    dq_QH = tl.zeros([Q, H], tl.float32)
    begin_Q, end_Q = rows_Q, rows_Q
    scale_2 = scale * LOG2_E
    start, full, stop = 0, valid // K * K, valid
    if SPANS:
        begin_Q, end_Q = _spans(begins, ends, sequence, rows_Q, length)
        start, stop = tl.min(begin_Q, 0) // 2 * 2, tl.max(end_Q, 0)
    else:
        for first in range(0, full, K):
            dq_QH = _backward_queries_block(
                q_QH, do_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, lse_Q, delta_Q, scale_2,
                drop_threshold, first, dq_QH, K, SPANS, DROPOUT, PRECISION, False,
            )  # fmt: skip
        start = full
    for first in range(start, stop, K):
        dq_QH = _backward_queries_block(
            q_QH, do_QH, base, width, unit_H, length, valid, begin_Q, end_Q, bits_Q, lse_Q, delta_Q, scale_2,
            drop_threshold, first, dq_QH, K, SPANS, DROPOUT, PRECISION, True,
        )  # fmt: skip
    dq_QH *= scale * dropout_scale
    tl.store(d_q + corner + rows_Q[:, None] * width + unit_H[None, :], dq_QH.to(q_QH.dtype), (rows_Q < length)[:, None])
    block = sequence * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + block.to(tl.int64) * 3 * width + head * H + unit_H, tl.sum(dq_QH, 0))


@triton.jit
def _backward_keys_block(  # type: ignore[no-untyped-def]
    k_KH, v_KH, base, gradient, lse, delta, bits, width, unit_H, length, begin_K, end_K, scale_2, drop_threshold,
    block, first, dk_KH, dv_KH,
    Q: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Adds what the queries from `first` on give to the gradients of keys and values, but for a factor.

    Scores are transposed, so that the products take them from registers.
    """
    rows_Q = first + tl.arange(0, Q)
    q_QH = _rows(base, rows_Q, 3 * width, unit_H, length, MASKED)
    do_QH = _rows(gradient, rows_Q, width, unit_H, length, MASKED)
    lse_Q = tl.load(lse + rows_Q, rows_Q < length, 0.0)
    delta_Q = tl.load(delta + rows_Q, rows_Q < length, 0.0)
    s_KQ = tl.dot(k_KH, tl.trans(q_QH), input_precision=PRECISION)
    d_KQ = tl.dot(v_KH, tl.trans(do_QH), input_precision=PRECISION)
    p_KQ = tl.exp2(s_KQ * scale_2 - lse_Q[None, :])
    if SPANS:  # visibility is symmetric
        visible_KQ = (rows_Q[None, :] >= begin_K[:, None]) & (rows_Q[None, :] < end_K[:, None])
        p_KQ = tl.where(visible_KQ, p_KQ, 0.0)
    weights_KQ = p_KQ
    if DROPOUT:
        bits_Q = unsigned(tl.load(bits + rows_Q, rows_Q < length, 0))
        keep_KQ = keep_mask_of_pairs(bits_Q, block * K, drop_threshold, K)
        d_KQ = tl.where(keep_KQ, d_KQ, 0.0)
        weights_KQ = tl.where(keep_KQ, p_KQ, 0.0)
    ds_KQ = p_KQ * (d_KQ - delta_Q[None, :])
    dv_KH = tl.dot(weights_KQ.to(do_QH.dtype), do_QH, dv_KH, input_precision=PRECISION)
    dk_KH = tl.dot(ds_KQ.to(q_QH.dtype), q_QH, dk_KH, input_precision=PRECISION)
    return dk_KH, dv_KH


@triton.jit(do_not_specialize=["address"])
def _backward_keys_kernel(  # type: ignore[no-untyped-def]
    qkv,  # (T, 3·N·H), keys and values overwritten with their gradients
    gradient,  # (T, N·H)
    lse, delta, bits,  # (B·N, L) fp32, fp32, int32
    sums,  # (B, blocks, 3·N·H) fp32 sums of the gradient over each block
    begins, ends,  # (B, L) int32 spans
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32, unused
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr, SPANS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    block = tl.program_id(1)
    place_K = tl.arange(0, K)
    keys_K = block * K + place_K // 16 * 16 + place_K % 8 * 2 + place_K // 8 % 2  # as `keep_mask_of_pairs` has them
    base = qkv + sequence.to(tl.int64) * length * 3 * width + head * H
    incoming = gradient + sequence.to(tl.int64) * length * width + head * H
    k_KH = _rows(base + width, keys_K, 3 * width, unit_H, length, True)
    v_KH = _rows(base + 2 * width, keys_K, 3 * width, unit_H, length, True)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    dk_KH = tl.zeros([K, H], tl.float32)
    dv_KH = tl.zeros([K, H], tl.float32)
    begin_K, end_K = keys_K, keys_K
    scale_2 = scale * LOG2_E
    row = tl.program_id(0) * length
    # Keys that are padding have no gradient.
    start, full = 0, tl.where(block * K < valid, length // Q * Q, 0)
    stop = tl.where(block * K < valid, length, 0)
    if SPANS:
        begin_K, end_K = _spans(begins, ends, sequence, keys_K, length)
        start, stop = tl.min(begin_K, 0), tl.max(end_K, 0)
    else:
        for first in range(0, full, Q):
            dk_KH, dv_KH = _backward_keys_block(
                k_KH, v_KH, base, incoming, lse + row, delta + row, bits + row, width, unit_H, length, begin_K, end_K,
                scale_2, drop_threshold, block, first, dk_KH, dv_KH, Q, K, SPANS, DROPOUT, PRECISION, False,
            )  # fmt: skip
        start = full
    for first in range(start, stop, Q):
        dk_KH, dv_KH = _backward_keys_block(
            k_KH, v_KH, base, incoming, lse + row, delta + row, bits + row, width, unit_H, length, begin_K, end_K,
            scale_2, drop_threshold, block, first, dk_KH, dv_KH, Q, K, SPANS, DROPOUT, PRECISION, True,
        )  # fmt: skip
    real_K1 = (keys_K < valid)[:, None]
    dk_KH = tl.where(real_K1, dk_KH * (scale * dropout_scale), 0.0)
    dv_KH = tl.where(real_K1, dv_KH * dropout_scale, 0.0)
    target = base + width + keys_K[:, None] * (3 * width) + unit_H[None, :]
    inside = (keys_K < length)[:, None]
    tl.store(target, dk_KH.to(k_KH.dtype), inside)
    tl.store(target + width, dv_KH.to(k_KH.dtype), inside)
    # The sum over keys is zero: what is added to all of them changes no softmax.
    part = sums + (sequence * tl.num_programs(1) + block).to(tl.int64) * 3 * width + head * H + unit_H
    tl.store(part + width, tl.zeros([H], tl.float32))
    tl.store(part + 2 * width, tl.sum(dv_KH, 0))


def attention_forward(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout,
    *, length: int, heads: int, out: Tensor, lse: Tensor,
) -> None:  # fmt: skip
    """Fill `out` (T, N·H) with the context of every head, and `lse` with each row's log-sum-exp.

    With `spans`, contiguous (B, L) arrays of int32, lengths are ignored.
    """
    programs, blocks = len(qkv_TW) // length * heads, FORWARD if spans is None else FORWARD_DOCUMENTS
    _forward_kernel[(programs, triton.cdiv(length, blocks.queries))](
        qkv_TW, out, lse, *_pointers(qkv_TW, spans),
        *numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads),
        **_constants(blocks, qkv_TW, lengths_B, spans, dropout, heads),
    )  # fmt: skip


def attention_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, context_TD: Tensor, lse_TN: Tensor, lengths_B: Tensor | None,
    spans: Spans | None, dropout: Dropout, *, length: int, heads: int, sums: Tensor,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums` (B, W) with that gradient's sums over each sequence.

    `context_TD` and `lse_TN` are what `attention_forward` filled.
    """
    sequences, width = len(qkv_TW) // length, qkv_TW.shape[1] // 3
    assert BACKWARD_QUERIES.queries == BACKWARD_KEYS.keys  # whose partial sums are rows of one array
    blocks = triton.cdiv(length, BACKWARD_KEYS.keys)
    d_q_TD = torch.empty_like(gradient_TD)  # not in place: each block of keys reads q
    delta_TN, bits_TN = torch.empty_like(lse_TN), torch.empty_like(lse_TN, dtype=torch.int32)
    parts_BPW = torch.empty(sequences, blocks, 3 * width, dtype=torch.float32, device=qkv_TW.device)
    others = (
        *_pointers(qkv_TW, spans), *numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads)
    )  # fmt: skip
    _backward_queries_kernel[(sequences * heads, blocks)](
        qkv_TW, d_q_TD, gradient_TD, context_TD, lse_TN, delta_TN, bits_TN, parts_BPW, *others,
        **_constants(BACKWARD_QUERIES, qkv_TW, lengths_B, spans, dropout, heads),
    )  # fmt: skip
    _backward_keys_kernel[(sequences * heads, blocks)](
        qkv_TW, gradient_TD, lse_TN, delta_TN, bits_TN, parts_BPW, *others,
        **_constants(BACKWARD_KEYS, qkv_TW, lengths_B, spans, dropout, heads),
    )  # fmt: skip
    eight_bytes = qkv_TW.view(torch.int64)  # a strided copy moves an element at a time
    eight_bytes[:, : eight_bytes.shape[1] // 3].copy_(d_q_TD.view(torch.int64))
    torch.sum(parts_BPW, 1, out=sums)


def _pointers(unused: Tensor, spans: Spans | None) -> tuple[Tensor, ...]:
    return (unused, unused) if spans is None else spans


def _constants(
    blocks: Blocks, qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout, heads: int
) -> dict[str, Any]:
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "Q": blocks.queries,
        "K": blocks.keys,
        "RAGGED": lengths_B is not None and spans is None,
        "SPANS": spans is not None,
        "DROPOUT": dropout.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
