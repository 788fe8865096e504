"""dropout(norm(token[ids] + position + segment)) in one kernel forward and one backward, in fp32.

A program holds whole rows. Backward it adds to the token table's gradient by atomics, so tokens need no sorting, and
leaves one row of partial sums for the small tables. Reference: `reference/embeddings.py`.

Shapes: B sequences, L length, T = B·L tokens, V vocabulary, E embedding size, R rows of a program, C the power of two
that holds a row, P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import NORM_EPS, Tables
from electra.ops.first_order import first_order_only
from electra.ops.triton.add_dropout_norm import BACKWARD_ELEMENTS, MAX_PROGRAMS, tile
from electra.ops.triton.hash import Dropout, bits, dropout_at, keep_mask, unsigned
from electra.ops.triton.partial_sums import sum_into


@triton.jit
def _summed(token, position, segment, id_R, segment_R, position_R, columns_C, inside, E: tl.constexpr):  # type: ignore[no-untyped-def]
    """(R, C) rows of the three tables, added up."""
    x = tl.load(token + id_R.to(tl.int64)[:, None] * E + columns_C[None, :], inside, 0.0)
    x += tl.load(position + position_R[:, None] * E + columns_C[None, :], inside, 0.0)
    return x + tl.load(segment + segment_R[:, None] * E + columns_C[None, :], inside, 0.0)


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    ids, segments,  # (T,) int32 or int64
    token, position, segment,  # (V, E), (positions, E), (2, E) fp32
    gamma, beta,  # (E,) fp32
    out,  # (T, E)
    mean, rstd,  # (T,) fp32
    keys,  # (B,) int32, of this call site
    tokens, length, drop_threshold, dropout_scale, eps,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    here_R = rows_R < tokens
    inside = here_R[:, None] & (columns_C < E)[None, :]
    id_R = tl.load(ids + rows_R, here_R, 0)
    segment_R = tl.load(segments + rows_R, here_R, 0)
    position_R = rows_R % length
    x = _summed(token, position, segment, id_R, segment_R, position_R, columns_C, inside, E)
    mean_R = tl.sum(x, 1) / E
    x = tl.where(inside, x - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(x * x, 1) / E + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < E, 0.0)
    y = x * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]
    if DROPOUT:
        bits_R = bits(unsigned(tl.load(keys + rows_R // length, here_R, 0)), position_R)
        y = tl.where(keep_mask(bits_R, 0, drop_threshold, C), y * dropout_scale, 0.0)
    tl.store(out + rows_R.to(tl.int64)[:, None] * E + columns_C[None, :], y.to(out.dtype.element_ty), inside)
    tl.store(mean + rows_R, mean_R, here_R)
    tl.store(rstd + rows_R, rstd_R, here_R)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    gradient,  # (T, E) of the output
    ids, segments,  # (T,)
    token, position, segment,  # (V, E), (positions, E), (2, E) fp32
    gamma,  # (E,) fp32
    mean, rstd,  # (T,) fp32
    d_token,  # (V, E) fp32 zeros, added to
    d_summed,  # (T, E) fp32 the gradient under the norm
    sums,  # (P, 4·E) fp32 partial sums: gamma, beta, first segment, second segment
    keys,  # (B,) int32
    tokens, length, drop_threshold, dropout_scale, steps,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    # Rows are summed at each step, or registers would not do: a warp has a column's rows in one thread, or in few.
    d_gamma_C = tl.zeros([C], tl.float32)
    d_beta_C = tl.zeros([C], tl.float32)
    first_C = tl.zeros([C], tl.float32)
    second_C = tl.zeros([C], tl.float32)
    for step in tl.range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < tokens
        inside = here_R[:, None] & (columns_C < E)[None, :]
        id_R = tl.load(ids + rows_R, here_R, 0)
        segment_R = tl.load(segments + rows_R, here_R, 0)
        position_R = rows_R % length
        mean_R = tl.load(mean + rows_R, here_R, 0.0)
        rstd_R = tl.load(rstd + rows_R, here_R, 0.0)
        offset = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        dy = tl.load(gradient + offset, inside, 0.0).to(tl.float32)
        if DROPOUT:
            bits_R = bits(unsigned(tl.load(keys + rows_R // length, here_R, 0)), position_R)
            dy = tl.where(keep_mask(bits_R, 0, drop_threshold, C), dy * dropout_scale, 0.0)
        x = _summed(token, position, segment, id_R, segment_R, position_R, columns_C, inside, E)
        x = tl.where(inside, (x - mean_R[:, None]) * rstd_R[:, None], 0.0)
        d_gamma_C += tl.sum(dy * x, 0)
        d_beta_C += tl.sum(dy, 0)
        dy = dy * gamma_C[None, :]
        mean_dy_R = tl.sum(dy, 1) / E
        mean_dyx_R = tl.sum(dy * x, 1) / E
        dx = tl.where(inside, (dy - mean_dy_R[:, None] - x * mean_dyx_R[:, None]) * rstd_R[:, None], 0.0)
        tl.store(d_summed + offset, dx, inside)
        tl.atomic_add(d_token + id_R.to(tl.int64)[:, None] * E + columns_C[None, :], dx, inside, sem="relaxed")
        is_second = segment_R.to(tl.float32)[:, None]
        first_C += tl.sum(dx * (1.0 - is_second), 0)
        second_C += tl.sum(dx * is_second, 0)
    row = sums + tl.program_id(0).to(tl.int64) * 4 * E + columns_C
    tl.store(row, d_gamma_C, columns_C < E)
    tl.store(row + E, d_beta_C, columns_C < E)
    tl.store(row + 2 * E, first_C, columns_C < E)
    tl.store(row + 3 * E, second_C, columns_C < E)


def embeddings(
    ids_BL: Tensor,
    segments_BL: Tensor,
    keys_B: Tensor | None,
    tables: Tables,
    *,
    rate: float,
    dtype: torch.dtype,
    base_VE: Tensor | None = None,
    max_programs: int = MAX_PROGRAMS,
) -> Tensor:
    """`max_programs` bounds the rows of partial sums of the backward."""
    assert base_VE is None, "the kernel adds no second token table"
    assert ids_BL.shape[1] <= len(tables.position_PE), "more tokens than positions"
    dropout = dropout_at(None if keys_B is None else keys_B.contiguous(), rate, 0)  # the keys are this call site's own
    with torch.cuda.device_of(ids_BL):
        out_BLE: Tensor = _Embeddings.apply(  # type: ignore[no-untyped-call]
            ids_BL.contiguous(), segments_BL.contiguous(), dropout, dtype, max_programs, *tables
        )
    return out_BLE


class _Embeddings(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids_BL: Tensor,
        segments_BL: Tensor,
        dropout: Dropout,
        dtype: torch.dtype,
        max_programs: int,
        *weights: Tensor,
    ) -> Tensor:
        tables = Tables(*weights)
        tokens, size, device = ids_BL.numel(), tables.token_VE.shape[1], ids_BL.device
        rows, block = tile(size, BACKWARD_ELEMENTS)
        out_BLE = torch.empty(*ids_BL.shape, size, dtype=dtype, device=device)
        mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=device).unbind()
        _forward_kernel[(triton.cdiv(tokens, rows),)](
            ids_BL, segments_BL, *tables, out_BLE, mean_T, rstd_T, ids_BL if dropout.keys_B is None else dropout.keys_B,
            tokens, ids_BL.shape[1], dropout.threshold, dropout.scale, NORM_EPS,
            E=size, C=block, R=rows, DROPOUT=dropout.keys_B is not None, num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(ids_BL, segments_BL, *tables[:4], mean_T, rstd_T)
        ctx.dropout, ctx.max_programs = dropout, max_programs
        return out_BLE

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_BLE: Tensor) -> tuple[Tensor | None, ...]:
        ids_BL, segments_BL, token_VE, position_PE, segment_2E, gamma_E, mean_T, rstd_T = ctx.saved_tensors
        dropout, (sequences, length), size, device = ctx.dropout, ids_BL.shape, token_VE.shape[1], ids_BL.device
        rows, block = tile(size, BACKWARD_ELEMENTS)
        steps = max(1, triton.cdiv(ids_BL.numel(), rows * ctx.max_programs))
        programs = triton.cdiv(ids_BL.numel(), rows * steps)
        d_token_VE = torch.zeros_like(token_VE)
        d_summed_TE = torch.empty(ids_BL.numel(), size, dtype=torch.float32, device=device)
        sums_PN = torch.empty(programs, 4 * size, dtype=torch.float32, device=device)
        _backward_kernel[(programs,)](
            gradient_BLE.contiguous(), ids_BL, segments_BL, token_VE, position_PE, segment_2E, gamma_E, mean_T, rstd_T,
            d_token_VE, d_summed_TE, sums_PN, ids_BL if dropout.keys_B is None else dropout.keys_B,
            ids_BL.numel(), length, dropout.threshold, dropout.scale, steps,
            E=size, C=block, R=rows, DROPOUT=dropout.keys_B is not None, num_warps=1,
        )  # fmt: skip
        d_vectors_4E = torch.empty(4, size, dtype=torch.float32, device=device)
        d_position_PE = torch.empty_like(position_PE)
        d_position_PE[length:] = 0.0
        sum_into(
            (d_summed_TE.view(1, sequences, -1), d_position_PE[:length].view(1, -1)),
            (sums_PN[None], d_vectors_4E.view(1, -1)),
        )
        d_gamma_E, d_beta_E, d_segment_2E = d_vectors_4E[0], d_vectors_4E[1], d_vectors_4E[2:]
        return None, None, None, None, None, d_token_VE, d_position_PE, d_segment_2E, d_gamma_E, d_beta_E
