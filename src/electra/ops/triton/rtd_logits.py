"""gelu(x · weightᵀ + bias) · scoreᵀ + score_bias: a library product, then the rest in one kernel, and one backward.

A program holds whole rows. Backward it loops over rows and leaves one row of partial sums for score, bias and
score_bias. Reference: `reference/rtd_logits.py`.

Shapes: B sequences, L length, T = B·L tokens, D width, C the power of two that holds it, R rows of a program, P
programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops.first_order import first_order_only
from electra.ops.triton.add_dropout_norm import tile
from electra.ops.triton.gelu_mlp import gelu, gelu_derivative
from electra.ops.triton.partial_sums import sum_rows

_ELEMENTS, MAX_PROGRAMS = 2048, 512


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    preact,  # (T, D) x · weightᵀ + bias
    score,  # (D,)
    score_bias,  # (1,)
    logits,  # (T,) fp32
    tokens, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
    x = tl.load(preact + rows_R.to(tl.int64)[:, None] * D + columns_C[None, :], inside, 0.0).to(tl.float32)
    score_C = tl.load(score + columns_C, columns_C < D, 0.0).to(tl.float32)
    logit_R = tl.sum(gelu(x, preact.dtype.element_ty) * score_C[None, :], 1) + tl.load(score_bias).to(tl.float32)
    tl.store(logits + rows_R, logit_R, rows_R < tokens)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    preact,  # (T, D)
    score,  # (D,)
    gradient,  # (T,) fp32 of the logits
    d_preact,  # (T, D)
    sums,  # (P, 2·D + 1) fp32 partial sums: score, bias, score_bias
    tokens, steps, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = preact.dtype.element_ty
    columns_C = tl.arange(0, C)
    score_C = tl.load(score + columns_C, columns_C < D, 0.0).to(tl.float32)
    d_score_RC = tl.zeros([R, C], tl.float32)
    d_bias_RC = tl.zeros([R, C], tl.float32)
    total_R = tl.zeros([R], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
        offset = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
        x = tl.load(preact + offset, inside, 0.0).to(tl.float32)
        gradient_R = tl.load(gradient + rows_R, rows_R < tokens, 0.0)
        total_R += gradient_R
        d_score_RC += gradient_R[:, None] * gelu(x, dtype)
        dx = gradient_R[:, None] * score_C[None, :] * gelu_derivative(x, dtype)
        d_bias_RC += dx
        tl.store(d_preact + offset, dx.to(dtype), inside)
    row = sums + tl.program_id(0).to(tl.int64) * (2 * D + 1)
    tl.store(row + columns_C, tl.sum(d_score_RC, 0), columns_C < D)
    tl.store(row + D + columns_C, tl.sum(d_bias_RC, 0), columns_C < D)
    tl.store(row + 2 * D, tl.sum(total_R, 0))


def rtd_logits(
    x_BLD: Tensor,
    weight_DD: Tensor,
    bias_D: Tensor,
    score_1D: Tensor,
    score_bias_1: Tensor,
    *,
    max_programs: int = MAX_PROGRAMS,
) -> Tensor:
    """`max_programs` bounds the rows of partial sums of the backward."""
    with torch.cuda.device_of(x_BLD):
        logits_T: Tensor = _RtdLogits.apply(  # type: ignore[no-untyped-call]
            x_BLD.flatten(0, 1).contiguous(), weight_DD, bias_D, score_1D, score_bias_1, max_programs
        )
    return logits_T.view(x_BLD.shape[:2])


class _RtdLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight_DD: Tensor,
        bias_D: Tensor,
        score_1D: Tensor,
        score_bias_1: Tensor,
        max_programs: int,
    ) -> Tensor:
        tokens, width = x_TD.shape
        preact_TD = torch.addmm(bias_D, x_TD, weight_DD.t())
        logits_T = torch.empty(tokens, dtype=torch.float32, device=x_TD.device)
        rows, block = tile(width, _ELEMENTS)
        _forward_kernel[(triton.cdiv(tokens, rows),)](
            preact_TD, score_1D, score_bias_1, logits_T, tokens, D=width, C=block, R=rows, num_warps=4
        )
        ctx.save_for_backward(x_TD, preact_TD, weight_DD, score_1D)
        ctx.max_programs = max_programs
        return logits_T

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, preact_TD, weight_DD, score_1D = ctx.saved_tensors
        tokens, width = x_TD.shape
        rows, block = tile(width, _ELEMENTS)
        steps = max(1, triton.cdiv(tokens, rows * ctx.max_programs))
        programs = triton.cdiv(tokens, rows * steps)
        sums_PN = torch.empty(programs, 2 * width + 1, dtype=torch.float32, device=x_TD.device)
        d_preact_TD = torch.empty_like(preact_TD)
        _backward_kernel[(programs,)](
            preact_TD, score_1D, gradient_T.contiguous(), d_preact_TD, sums_PN, tokens, steps,
            D=width, C=block, R=rows, num_warps=4,
        )  # fmt: skip
        d_score_D, d_bias_D, d_score_bias_1 = sum_rows(sums_PN[None], x_TD.dtype)[0].split((width, width, 1))
        return d_preact_TD @ weight_DD, d_preact_TD.t() @ x_TD, d_bias_D, d_score_D[None], d_score_bias_1, None
