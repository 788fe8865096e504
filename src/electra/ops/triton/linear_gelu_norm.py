"""norm(gelu(x · weightᵀ + bias)): a library product, then GELU and norm in one kernel, and one kernel backward.

A program holds whole rows. Backward it loops over rows and leaves one row of partial sums for gamma, beta and bias.
Reference: `reference/linear_gelu_norm.py`.

Shapes: M positions, D width, E embedding size, C the power of two that holds it, R rows of a program, P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.first_order import first_order_only
from electra.ops.triton.add_dropout_norm import tile
from electra.ops.triton.gelu_mlp import gelu, gelu_derivative
from electra.ops.triton.partial_sums import sum_into

_ELEMENTS, MAX_PROGRAMS = 1024, 512


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    preact,  # (M, E) x · weightᵀ + bias
    gamma, beta,  # (E,) fp32
    out,  # (M, E)
    mean, rstd,  # (M,) fp32
    rows, eps, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = preact.dtype.element_ty
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < rows)[:, None] & (columns_C < E)[None, :]
    offset = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
    x = gelu(tl.load(preact + offset, inside, 0.0).to(tl.float32), dtype)
    mean_R = tl.sum(x, 1) / E
    x = tl.where(inside, x - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(x * x, 1) / E + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < E, 0.0)
    tl.store(out + offset, (x * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]).to(dtype), inside)
    tl.store(mean + rows_R, mean_R, rows_R < rows)
    tl.store(rstd + rows_R, rstd_R, rows_R < rows)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    gradient,  # (M, E) of the output
    preact,  # (M, E)
    gamma,  # (E,) fp32
    mean, rstd,  # (M,) fp32
    d_preact,  # (M, E)
    sums,  # (P, 3·E) fp32 partial sums: gamma, beta, bias
    rows, steps, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = preact.dtype.element_ty
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    d_gamma_C = tl.zeros([C], tl.float32)
    d_beta_C = tl.zeros([C], tl.float32)
    d_bias_C = tl.zeros([C], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < rows
        inside = here_R[:, None] & (columns_C < E)[None, :]
        offset = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        u = tl.load(preact + offset, inside, 0.0).to(tl.float32)
        dy = tl.load(gradient + offset, inside, 0.0).to(tl.float32)
        mean_R = tl.load(mean + rows_R, here_R, 0.0)
        rstd_R = tl.load(rstd + rows_R, here_R, 0.0)
        x = tl.where(inside, (gelu(u, dtype) - mean_R[:, None]) * rstd_R[:, None], 0.0)
        d_gamma_C += tl.sum(dy * x, 0)
        d_beta_C += tl.sum(dy, 0)
        dy = dy * gamma_C[None, :]
        mean_dy_R = tl.sum(dy, 1) / E
        mean_dyx_R = tl.sum(dy * x, 1) / E
        dx = (dy - mean_dy_R[:, None] - x * mean_dyx_R[:, None]) * rstd_R[:, None] * gelu_derivative(u, dtype)
        dx = tl.where(inside, dx, 0.0)
        tl.store(d_preact + offset, dx.to(dtype), inside)
        d_bias_C += tl.sum(dx, 0)
    row = sums + tl.program_id(0).to(tl.int64) * 3 * E + columns_C
    tl.store(row, d_gamma_C, columns_C < E)
    tl.store(row + E, d_beta_C, columns_C < E)
    tl.store(row + 2 * E, d_bias_C, columns_C < E)


def linear_gelu_norm(
    x_MD: Tensor,
    weight_ED: Tensor,
    bias_E: Tensor,
    gamma_E: Tensor,
    beta_E: Tensor,
    *,
    max_programs: int = MAX_PROGRAMS,
) -> Tensor:
    """`max_programs` bounds the rows of partial sums of the backward."""
    with torch.cuda.device_of(x_MD):
        out_ME: Tensor = _LinearGeluNorm.apply(  # type: ignore[no-untyped-call]
            x_MD.contiguous(), weight_ED, bias_E, gamma_E, beta_E, max_programs
        )
    return out_ME


class _LinearGeluNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, weight_ED: Tensor, bias_E: Tensor, gamma_E: Tensor, beta_E: Tensor, max_programs: int
    ) -> Tensor:
        preact_ME = torch.addmm(bias_E, x_MD, weight_ED.t())
        count, size = preact_ME.shape
        out_ME = torch.empty_like(preact_ME)
        mean_M, rstd_M = torch.empty(2, count, dtype=torch.float32, device=x_MD.device).unbind()
        rows, block = tile(size, _ELEMENTS)
        _forward_kernel[(triton.cdiv(count, rows),)](
            preact_ME, gamma_E, beta_E, out_ME, mean_M, rstd_M, count, NORM_EPS, E=size, C=block, R=rows, num_warps=1
        )
        ctx.save_for_backward(x_MD, weight_ED, preact_ME, gamma_E, mean_M, rstd_M)
        ctx.max_programs = max_programs
        return out_ME

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_ME: Tensor) -> tuple[Tensor | None, ...]:
        x_MD, weight_ED, preact_ME, gamma_E, mean_M, rstd_M = ctx.saved_tensors
        count, size = preact_ME.shape
        rows, block = tile(size, _ELEMENTS)
        steps = max(1, triton.cdiv(count, rows * ctx.max_programs))
        programs = triton.cdiv(count, rows * steps)
        sums_PN = torch.empty(programs, 3 * size, dtype=torch.float32, device=x_MD.device)
        d_preact_ME = torch.empty_like(preact_ME)
        _backward_kernel[(programs,)](
            gradient_ME.contiguous(), preact_ME, gamma_E, mean_M, rstd_M, d_preact_ME, sums_PN, count, steps,
            E=size, C=block, R=rows, num_warps=1,
        )  # fmt: skip
        d_norm_2E = torch.empty(2, size, dtype=gamma_E.dtype, device=x_MD.device)
        d_bias_E = torch.empty(size, dtype=x_MD.dtype, device=x_MD.device)
        sum_into((sums_PN[None, :, : 2 * size], d_norm_2E.view(1, -1)), (sums_PN[None, :, 2 * size :], d_bias_E[None]))
        return d_preact_ME @ weight_ED, d_preact_ME.t() @ x_MD, d_bias_E, d_norm_2E[0], d_norm_2E[1], None
