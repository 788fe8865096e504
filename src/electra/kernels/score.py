"""The discriminator's head: a product, then GELU and the score in one kernel, and their way back in another.

The plain twin is `model.heads.DetectionHead`.

Shapes: T tokens, D width, C the power of two that holds it, R rows of a program at a time, P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.gelu import gelu_of, slope_of
from electra.kernels.sums import sum_lines

TILE = 2048
MOST_PROGRAMS = 512


@triton.jit
def _score_forward(  # type: ignore[no-untyped-def]
    inner, weight, bias, scores, tokens, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr
):
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
    x = tl.load(inner + rows_R.to(tl.int64)[:, None] * D + columns_C[None, :], inside, 0.0).to(tl.float32)
    weight_C = tl.load(weight + columns_C, columns_C < D, 0.0).to(tl.float32)
    score_R = tl.sum(gelu_of(x, inner.dtype.element_ty) * weight_C[None, :], 1) + tl.load(bias).to(tl.float32)
    tl.store(scores + rows_R, score_R, rows_R < tokens)


@triton.jit
def _score_backward(  # type: ignore[no-untyped-def]
    inner, weight, gradient, d_inner, sums, tokens, steps, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr
):
    kind: tl.constexpr = inner.dtype.element_ty
    columns_C = tl.arange(0, C)
    weight_C = tl.load(weight + columns_C, columns_C < D, 0.0).to(tl.float32)
    weight_RC = tl.zeros([R, C], tl.float32)
    bias_RC = tl.zeros([R, C], tl.float32)
    total_R = tl.zeros([R], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
        place = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
        x = tl.load(inner + place, inside, 0.0).to(tl.float32)
        incoming_R = tl.load(gradient + rows_R, rows_R < tokens, 0.0)
        total_R += incoming_R
        weight_RC += incoming_R[:, None] * gelu_of(x, kind)
        dx = incoming_R[:, None] * weight_C[None, :] * slope_of(x, kind)
        bias_RC += dx
        tl.store(d_inner + place, dx.to(kind), inside)
    first = sums + tl.program_id(0).to(tl.int64) * (2 * D + 1)
    line = first + columns_C
    tl.store(line, tl.sum(weight_RC, 0), columns_C < D)
    tl.store(line + D, tl.sum(bias_RC, 0), columns_C < D)
    tl.store(first + 2 * D, tl.sum(total_R, 0))


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, dense_DD: Tensor, dense_bias_D: Tensor, weight_1D: Tensor, bias_1: Tensor
    ) -> Tensor:
        tokens, width = x_TD.shape
        inner_TD = torch.addmm(dense_bias_D, x_TD, dense_DD.t())
        scores_T = torch.empty(tokens, dtype=torch.float32, device=x_TD.device)
        block, rows = _tile(width)
        _score_forward[(triton.cdiv(tokens, rows),)](
            inner_TD, weight_1D, bias_1, scores_T, tokens, D=width, C=block, R=rows, num_warps=4
        )
        ctx.save_for_backward(x_TD, inner_TD, dense_DD, weight_1D)
        return scores_T

    @staticmethod
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor, ...]:
        x_TD, inner_TD, dense_DD, weight_1D = ctx.saved_tensors
        tokens, width = x_TD.shape
        block, rows = _tile(width)
        steps = max(1, triton.cdiv(tokens, rows * MOST_PROGRAMS))
        programs = triton.cdiv(tokens, rows * steps)
        sums_PN = torch.empty(programs, 2 * width + 1, dtype=torch.float32, device=x_TD.device)
        d_inner_TD = torch.empty_like(inner_TD)
        gradient_T = gradient_T.contiguous()
        _score_backward[(programs,)](
            inner_TD, weight_1D, gradient_T, d_inner_TD, sums_PN, tokens, steps, D=width, C=block, R=rows, num_warps=4
        )
        d_weight_D, d_bias_D, d_score_1 = sum_lines(sums_PN[None], x_TD.dtype)[0].split((width, width, 1))
        return d_inner_TD @ dense_DD, d_inner_TD.t() @ x_TD, d_bias_D, d_weight_D[None], d_score_1


def _tile(width: int) -> tuple[int, int]:
    block = triton.next_power_of_2(width)
    return block, max(1, TILE // block)


@torch.compiler.disable
def score(x_BLD: Tensor, *weights: Tensor) -> Tensor:
    """(B, L) fp32; `weights` are those of the dense layer and of the score, each with its bias."""
    with torch.cuda.device_of(x_BLD):
        scores_T: Tensor = _Score.apply(x_BLD.flatten(0, 1).contiguous(), *weights)  # type: ignore[no-untyped-call]
    return scores_T.view(x_BLD.shape[:2])
