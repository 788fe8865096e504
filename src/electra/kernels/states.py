"""What a masked head compares with the vocabulary: a product, then GELU and norm in one kernel, and their way back.

The plain twin is `model.heads.MaskedHead.states`.

Shapes: M places, D width, E embedding size, C the power of two that holds it, R rows of a program, P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.gelu import gelu_of, slope_of
from electra.kernels.norm import tile
from electra.kernels.sums import sum_into

TILE, MOST_PROGRAMS = 1024, 512


@triton.jit
def _states_forward(  # type: ignore[no-untyped-def]
    inner, gamma, beta, out, mean, rstd, rows, eps, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr
):
    kind: tl.constexpr = inner.dtype.element_ty
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < rows)[:, None] & (columns_C < E)[None, :]
    place = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
    x = gelu_of(tl.load(inner + place, inside, 0.0).to(tl.float32), kind)
    mean_R = tl.sum(x, 1) / E
    x = tl.where(inside, x - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(x * x, 1) / E + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < E, 0.0)
    tl.store(out + place, (x * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]).to(kind), inside)
    tl.store(mean + rows_R, mean_R, rows_R < rows)
    tl.store(rstd + rows_R, rstd_R, rows_R < rows)


@triton.jit
def _states_backward(  # type: ignore[no-untyped-def]
    gradient, inner, gamma, mean, rstd, d_inner, sums, rows, steps, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr
):
    kind: tl.constexpr = inner.dtype.element_ty
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    d_gamma_C = tl.zeros([C], tl.float32)
    d_beta_C = tl.zeros([C], tl.float32)
    d_bias_C = tl.zeros([C], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < rows
        inside = here_R[:, None] & (columns_C < E)[None, :]
        place = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        given = tl.load(inner + place, inside, 0.0).to(tl.float32)
        dy = tl.load(gradient + place, inside, 0.0).to(tl.float32)
        mean_R = tl.load(mean + rows_R, here_R, 0.0)
        rstd_R = tl.load(rstd + rows_R, here_R, 0.0)
        x = tl.where(inside, (gelu_of(given, kind) - mean_R[:, None]) * rstd_R[:, None], 0.0)
        d_gamma_C += tl.sum(dy * x, 0)
        d_beta_C += tl.sum(dy, 0)
        dy = dy * gamma_C[None, :]
        level_R = tl.sum(dy, 1) / E
        slope_R = tl.sum(dy * x, 1) / E
        dx = (dy - level_R[:, None] - x * slope_R[:, None]) * rstd_R[:, None] * slope_of(given, kind)
        dx = tl.where(inside, dx, 0.0)
        tl.store(d_inner + place, dx.to(kind), inside)
        d_bias_C += tl.sum(dx, 0)
    line = sums + tl.program_id(0).to(tl.int64) * 3 * E + columns_C
    tl.store(line, d_gamma_C, columns_C < E)
    tl.store(line + E, d_beta_C, columns_C < E)
    tl.store(line + 2 * E, d_bias_C, columns_C < E)


class _States(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, dense_ED: Tensor, bias_E: Tensor, gamma_E: Tensor, beta_E: Tensor, eps: float
    ) -> Tensor:
        inner_ME = torch.addmm(bias_E, x_MD, dense_ED.t())
        count, size = inner_ME.shape
        out_ME = torch.empty_like(inner_ME)
        mean_M, rstd_M = torch.empty(2, count, dtype=torch.float32, device=x_MD.device).unbind()
        rows, block = tile(size, TILE)
        _states_forward[(triton.cdiv(count, rows),)](
            inner_ME, gamma_E, beta_E, out_ME, mean_M, rstd_M, count, eps, E=size, C=block, R=rows, num_warps=1
        )
        ctx.save_for_backward(x_MD, dense_ED, inner_ME, gamma_E, mean_M, rstd_M)
        return out_ME

    @staticmethod
    def backward(ctx: Any, gradient_ME: Tensor) -> tuple[Tensor | None, ...]:
        x_MD, dense_ED, inner_ME, gamma_E, mean_M, rstd_M = ctx.saved_tensors
        count, size = inner_ME.shape
        rows, block = tile(size, TILE)
        steps = max(1, triton.cdiv(count, rows * MOST_PROGRAMS))
        programs = triton.cdiv(count, rows * steps)
        lines_PN = torch.empty(programs, 3 * size, dtype=torch.float32, device=x_MD.device)
        d_inner_ME = torch.empty_like(inner_ME)
        _states_backward[(programs,)](
            gradient_ME.contiguous(), inner_ME, gamma_E, mean_M, rstd_M, d_inner_ME, lines_PN, count, steps,
            E=size, C=block, R=rows, num_warps=1,
        )  # fmt: skip
        d_norm_2E = torch.empty(2, size, dtype=gamma_E.dtype, device=x_MD.device)
        d_bias_E = torch.empty(size, dtype=x_MD.dtype, device=x_MD.device)
        sum_into(
            (lines_PN[None, :, : 2 * size], d_norm_2E.view(1, -1)), (lines_PN[None, :, 2 * size :], d_bias_E[None])
        )
        return d_inner_ME @ dense_ED, d_inner_ME.t() @ x_MD, d_bias_E, d_norm_2E[0], d_norm_2E[1], None


@torch.compiler.disable
def states(x_MD: Tensor, *weights: Tensor, eps: float) -> Tensor:
    """(M, E); `weights` are those of the dense layer and, in fp32, of the norm, each with its bias."""
    with torch.cuda.device_of(x_MD):
        out_ME: Tensor = _States.apply(x_MD.contiguous(), *weights, eps)  # type: ignore[no-untyped-call]
    return out_ME
