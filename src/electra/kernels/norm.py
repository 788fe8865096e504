"""Dropout, residual and LayerNorm in one pass, forward and backward.

Shapes: T tokens, L length of a text, D width, R rows of a program, C columns of half a row, P programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.hashing import Drop, kept, row_words

TILE = 2048
"""Elements of half a row, times rows, that a program of the way there holds."""
TILE_BACK, MOST_PROGRAMS = 512, 1024
"""The same on the way back, one warp a program: sums over rows cost most where warps must share them."""


@triton.jit(do_not_specialize=["site"])
def _norm_forward(  # type: ignore[no-untyped-def]
    branch, residual, out, mean, rstd, gamma, beta, keys, site, tokens, length, threshold, grow, eps,
    D: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    in0 = (rows_R < tokens)[:, None] & (columns_C < HALF)[None, :]
    in1 = (rows_R < tokens)[:, None] & (columns_C < D - HALF)[None, :]
    place0 = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
    place1 = place0 + HALF
    b0 = tl.load(branch + place0, in0, 0.0).to(tl.float32)
    b1 = tl.load(branch + place1, in1, 0.0).to(tl.float32)
    if DROP:
        words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
        keep0, keep1 = kept(words_R, columns_C, threshold)
        b0 = tl.where(keep0, b0 * grow, 0.0)
        b1 = tl.where(keep1, b1 * grow, 0.0)
    z0 = b0 + tl.load(residual + place0, in0, 0.0).to(tl.float32)
    z1 = b1 + tl.load(residual + place1, in1, 0.0).to(tl.float32)
    mean_R = (tl.sum(z0, 1) + tl.sum(z1, 1)) / D
    c0 = tl.where(in0, z0 - mean_R[:, None], 0.0)
    c1 = tl.where(in1, z1 - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt((tl.sum(c0 * c0, 1) + tl.sum(c1 * c1, 1)) / D + eps)
    g0 = tl.load(gamma + columns_C, columns_C < HALF, 0.0)
    g1 = tl.load(gamma + HALF + columns_C, columns_C < D - HALF, 0.0)
    a0 = tl.load(beta + columns_C, columns_C < HALF, 0.0)
    a1 = tl.load(beta + HALF + columns_C, columns_C < D - HALF, 0.0)
    kind = out.dtype.element_ty
    tl.store(branch + place0, z0.to(kind), in0)
    tl.store(branch + place1, z1.to(kind), in1)
    tl.store(out + place0, (c0 * rstd_R[:, None] * g0[None, :] + a0[None, :]).to(kind), in0)
    tl.store(out + place1, (c1 * rstd_R[:, None] * g1[None, :] + a1[None, :]).to(kind), in1)
    tl.store(mean + rows_R, mean_R, rows_R < tokens)
    tl.store(rstd + rows_R, rstd_R, rows_R < tokens)


@triton.jit(do_not_specialize=["site"])
def _norm_backward(  # type: ignore[no-untyped-def]
    gradient, summed, branch, sums, mean, rstd, gamma, keys, site, tokens, length, threshold, grow, steps,
    D: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    g0 = tl.load(gamma + columns_C, columns_C < HALF, 0.0)
    g1 = tl.load(gamma + HALF + columns_C, columns_C < D - HALF, 0.0)
    gamma0 = tl.zeros([R, C], tl.float32)
    gamma1 = tl.zeros([R, C], tl.float32)
    beta0 = tl.zeros([R, C], tl.float32)
    beta1 = tl.zeros([R, C], tl.float32)
    bias0 = tl.zeros([R, C], tl.float32)
    bias1 = tl.zeros([R, C], tl.float32)
    kind = branch.dtype.element_ty
    for step in tl.range(steps, num_stages=3):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        in0 = (rows_R < tokens)[:, None] & (columns_C < HALF)[None, :]
        in1 = (rows_R < tokens)[:, None] & (columns_C < D - HALF)[None, :]
        place0 = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
        place1 = place0 + HALF
        mean_R = tl.load(mean + rows_R, rows_R < tokens, 0.0)
        rstd_R = tl.load(rstd + rows_R, rows_R < tokens, 0.0)
        dy0 = tl.load(gradient + place0, in0, 0.0).to(tl.float32)
        dy1 = tl.load(gradient + place1, in1, 0.0).to(tl.float32)
        x0 = (tl.load(summed + place0, in0, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None]
        x1 = (tl.load(summed + place1, in1, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None]
        x0 = tl.where(in0, x0, 0.0)
        x1 = tl.where(in1, x1, 0.0)
        gamma0 += dy0 * x0
        gamma1 += dy1 * x1
        beta0 += dy0
        beta1 += dy1
        dy0 = dy0 * g0[None, :]
        dy1 = dy1 * g1[None, :]
        level_R = (tl.sum(dy0, 1) + tl.sum(dy1, 1)) / D
        slope_R = (tl.sum(dy0 * x0, 1) + tl.sum(dy1 * x1, 1)) / D
        dz0 = (dy0 - level_R[:, None] - x0 * slope_R[:, None]) * rstd_R[:, None]
        dz1 = (dy1 - level_R[:, None] - x1 * slope_R[:, None]) * rstd_R[:, None]
        tl.store(summed + place0, dz0.to(kind), in0)
        tl.store(summed + place1, dz1.to(kind), in1)
        if DROP:
            words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
            keep0, keep1 = kept(words_R, columns_C, threshold)
            dz0 = tl.where(keep0, dz0 * grow, 0.0)
            dz1 = tl.where(keep1, dz1 * grow, 0.0)
        tl.store(branch + place0, dz0.to(kind), in0)
        tl.store(branch + place1, dz1.to(kind), in1)
        bias0 += tl.where(in0, dz0, 0.0)
        bias1 += tl.where(in1, dz1, 0.0)
    line = sums + tl.program_id(0).to(tl.int64) * 3 * D + columns_C
    tl.store(line, tl.sum(gamma0, 0), columns_C < HALF)
    tl.store(line + HALF, tl.sum(gamma1, 0), columns_C < D - HALF)
    tl.store(line + D, tl.sum(beta0, 0), columns_C < HALF)
    tl.store(line + D + HALF, tl.sum(beta1, 0), columns_C < D - HALF)
    tl.store(line + 2 * D, tl.sum(bias0, 0), columns_C < HALF)
    tl.store(line + 2 * D + HALF, tl.sum(bias1, 0), columns_C < D - HALF)


def add_norm(
    branch_TD: Tensor, residual_TD: Tensor, gamma_D: Tensor, beta_D: Tensor, drop: Drop,
    *, length: int, eps: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill `out` with LayerNorm(residual + dropout(branch)); each row's mean and inverse deviation.

    `branch_TD` is overwritten with the sum, which the way back needs too.
    """
    tokens, width = branch_TD.shape
    rows, half, block = tile(width, TILE)
    mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=branch_TD.device).unbind()
    keys = branch_TD if drop.keys_B is None else drop.keys_B
    _norm_forward[(triton.cdiv(tokens, rows),)](
        branch_TD, residual_TD, out, mean_T, rstd_T, gamma_D, beta_D, keys, drop.site, tokens, length,
        drop.threshold, drop.grow, eps,
        D=width, HALF=half, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=4,
    )  # fmt: skip
    return mean_T, rstd_T


def programs(tokens: int, width: int) -> int:
    """How many lines of sums `add_norm_backward` writes."""
    rows, _, _ = tile(width, TILE_BACK)
    lines: int = triton.cdiv(tokens, rows * _steps(tokens, rows))
    return lines


def add_norm_backward(
    gradient_TD: Tensor, summed_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, gamma_D: Tensor, drop: Drop,
    branch_TD: Tensor, sums_P3D: Tensor, *, length: int,
) -> None:  # fmt: skip
    """Overwrite `summed_TD` with the residual's gradient, `branch_TD` with the branch's.

    `sums_P3D` gets, line by line, what adds up to the gradients of gamma, beta, and the bias of the branch.
    """
    tokens, width = summed_TD.shape
    rows, half, block = tile(width, TILE_BACK)
    keys = summed_TD if drop.keys_B is None else drop.keys_B
    _norm_backward[(len(sums_P3D),)](
        gradient_TD, summed_TD, branch_TD, sums_P3D, mean_T, rstd_T, gamma_D, keys, drop.site, tokens, length,
        drop.threshold, drop.grow, _steps(tokens, rows),
        D=width, HALF=half, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
    )  # fmt: skip


def tile(width: int, elements: int) -> tuple[int, int, int]:
    """Rows of a program that holds so many elements of half a row; half of a row; the power of two that holds it."""
    half = (width + 1) // 2
    block = triton.next_power_of_2(half)
    return max(1, elements // block), half, block


def _steps(tokens: int, rows: int) -> int:
    steps: int = max(1, triton.cdiv(tokens, rows * MOST_PROGRAMS))
    return steps
