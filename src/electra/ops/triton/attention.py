"""Attention over at most 128 tokens: one program holds all scores of one head of one sequence.

context = dropout(softmax(q·kᵀ / √H)) · v for every head. Backward computes the scores again from q and k, and
overwrites q, k and v with their gradients. Reference: `reference/attention.py`, between its two products.

Shapes: B sequences, T = B·L tokens, N heads, H head size, L length (in the kernels the power of two that holds it).
Queries, keys and values lie side by side in one (T, W = 3·N·H) array.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops.triton.hash import Dropout, keep_mask, row_bits

MAX_LENGTH = 128
"""Tokens of a sequence whose scores one program can hold; `attention_long` takes longer ones."""
_WARPS = 8


@triton.jit
def _softmax(q_LH, k_LH, valid_L, scale, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Softmax over the valid keys, in two factors: (L, L) with 1 for each row's highest score, and (L,) of each row.

    The caller multiplies by the second where there is less to multiply.
    """
    s_LL = tl.dot(q_LH, tl.trans(k_LH), input_precision=PRECISION)
    s_LL = tl.where(valid_L[None, :], s_LL, -1e30)
    scale_2 = scale * 1.4426950408889634  # for powers of 2
    top_L = tl.maximum(tl.max(s_LL, 1), -1e28)  # of a sequence of no tokens
    e_LL = tl.exp2(s_LL * scale_2 - (top_L * scale_2)[:, None])
    return e_LL, 1.0 / tl.maximum(tl.sum(e_LL, 1), 1e-30)


@triton.jit(do_not_specialize=["address"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv,  # (T, 3·N·H)
    out,  # (T, N·H)
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    inside = (rows_L < length)[:, None]
    base = qkv + sequence.to(tl.int64) * length * 3 * width + head * H
    offset = base + rows_L[:, None] * (3 * width) + unit_H[None, :]
    q_LH = tl.load(offset, inside, 0.0)
    k_LH = tl.load(offset + width, inside, 0.0)
    v_LH = tl.load(offset + 2 * width, inside, 0.0)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    e_LL, factor_L = _softmax(q_LH, k_LH, rows_L < valid, scale, PRECISION)
    if DROPOUT:
        bits_L = row_bits(tl.load(keys + sequence), address, head * length + rows_L)
        e_LL = tl.where(keep_mask(bits_L, 0, drop_threshold, L), e_LL, 0.0)
        factor_L *= dropout_scale
    context_LH = tl.dot(e_LL.to(v_LH.dtype), v_LH, input_precision=PRECISION) * factor_L[:, None]
    target = out + sequence.to(tl.int64) * length * width + head * H
    tl.store(target + rows_L[:, None] * width + unit_H[None, :], context_LH.to(q_LH.dtype), inside)


@triton.jit(do_not_specialize=["address"])
def _backward_kernel(  # type: ignore[no-untyped-def]
    qkv,  # (T, 3·N·H), overwritten with its gradient
    gradient,  # (T, N·H) of the output
    sums,  # (B, 3·N·H) fp32 sums of the gradient over each sequence
    lengths,  # (B,) int32 valid lengths
    keys,  # (B,) int32
    address, length, heads, scale, drop_threshold, dropout_scale,
    H: tl.constexpr, L: tl.constexpr, RAGGED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    width = heads * H
    unit_H = tl.arange(0, H)
    rows_L = tl.arange(0, L)
    inside = (rows_L < length)[:, None]
    base = qkv + sequence.to(tl.int64) * length * 3 * width + head * H
    offset = base + rows_L[:, None] * (3 * width) + unit_H[None, :]
    incoming = gradient + sequence.to(tl.int64) * length * width + head * H
    q_LH = tl.load(offset, inside, 0.0)
    k_LH = tl.load(offset + width, inside, 0.0)
    v_LH = tl.load(offset + 2 * width, inside, 0.0)
    do_LH = tl.load(incoming + rows_L[:, None] * width + unit_H[None, :], inside, 0.0)
    valid = length
    if RAGGED:
        valid = tl.load(lengths + sequence).to(tl.int32)
    dtype = q_LH.dtype
    e_LL, factor_L = _softmax(q_LH, k_LH, rows_L < valid, scale, PRECISION)
    if DROPOUT:
        bits_L = row_bits(tl.load(keys + sequence), address, head * length + rows_L)
        m_LL = tl.where(keep_mask(bits_L, 0, drop_threshold, L), e_LL * (factor_L * dropout_scale)[:, None], 0.0)
    else:
        m_LL = e_LL * factor_L[:, None]
    d_LL = tl.dot(do_LH, tl.trans(v_LH), input_precision=PRECISION) * m_LL
    dv_LH = tl.dot(tl.trans(m_LL.to(dtype)), do_LH, input_precision=PRECISION)
    s_LL = (d_LL - e_LL * (tl.sum(d_LL, 1) * factor_L)[:, None]).to(dtype)
    dq_LH = tl.dot(s_LL, k_LH, input_precision=PRECISION) * scale
    dk_LH = tl.dot(tl.trans(s_LL), q_LH, input_precision=PRECISION) * scale
    # Each program has read all that it overwrites.
    tl.debug_barrier()
    tl.store(offset, dq_LH.to(dtype), inside)
    tl.store(offset + width, dk_LH.to(dtype), inside)
    tl.store(offset + 2 * width, dv_LH.to(dtype), inside)
    # Rows past the end have no gradient, so nothing need be left out of the sums. The sum over keys is zero: what is
    # added to all of them changes no softmax.
    row = sums + sequence * 3 * width + head * H + unit_H
    tl.store(row, tl.sum(dq_LH, 0))
    tl.store(row + width, tl.zeros([H], tl.float32))
    tl.store(row + 2 * width, tl.sum(dv_LH, 0))


def attention_forward(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout,
    *, length: int, heads: int, out: Tensor, lse: Tensor,
) -> None:  # fmt: skip
    """Fill `out` (T, N·H) with the context of every head; `lse` is left as it is: the backward needs none."""
    assert spans is None and length <= MAX_LENGTH
    programs = len(qkv_TW) // length * heads
    numbers = numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads)
    _forward_kernel[(programs,)](qkv_TW, out, *numbers, **_constants(qkv_TW, lengths_B, dropout, length, heads))


def attention_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, context_TD: Tensor, lse_TN: Tensor, lengths_B: Tensor | None,
    spans: Spans | None, dropout: Dropout, *, length: int, heads: int, sums: Tensor,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums` (B, W) with that gradient's sums over each sequence."""
    assert spans is None and length <= MAX_LENGTH
    programs = len(qkv_TW) // length * heads
    numbers = numeric_arguments(qkv_TW, lengths_B, dropout, length=length, heads=heads)
    constants = _constants(qkv_TW, lengths_B, dropout, length, heads)
    _backward_kernel[(programs,)](qkv_TW, gradient_TD, sums, *numbers, **constants)


def numeric_arguments(
    qkv_TW: Tensor, lengths_B: Tensor | None, dropout: Dropout, *, length: int, heads: int
) -> tuple[Tensor | int | float, ...]:
    """What the attention kernels, short and long, take after their arrays."""
    head_size = qkv_TW.shape[1] // 3 // heads
    unused = qkv_TW
    return (
        unused if lengths_B is None else lengths_B,
        unused if dropout.keys_B is None else dropout.keys_B,
        dropout.address, length, heads, head_size**-0.5, dropout.threshold,
        1.0 if dropout.keys_B is None else dropout.scale,
    )  # fmt: skip


def precision(dtype: torch.dtype) -> str:
    """How products of this dtype are computed: fp32 ones in full."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _constants(qkv_TW: Tensor, lengths_B: Tensor | None, dropout: Dropout, length: int, heads: int) -> dict[str, Any]:
    return {
        "H": qkv_TW.shape[1] // 3 // heads,
        "L": max(32, triton.next_power_of_2(length)),
        "RAGGED": lengths_B is not None,
        "DROPOUT": dropout.keys_B is not None,
        "PRECISION": precision(qkv_TW.dtype),
        "num_warps": _WARPS,
    }
