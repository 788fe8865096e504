"""Dropout, residual and LayerNorm in one pass, forward and backward.

On Hopper the way back of width 256 has a kernel in CUDA: few blocks, each with all the rows on their way that it can
hold, leave few lines of sums to add up. Other widths and types take the one in Triton.

Shapes: T tokens, L length of a text, D width, R rows of a program, C the power of two that holds a row, P programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import native
from electra.kernels.hashing import Drop, kept, row_words
from electra.kernels.native import Kernel, aligned, launch

TILE = 4096
"""Elements that a program of the way there holds."""
TILE_BACK, MOST_PROGRAMS = 1024, 1024
"""The same on the way back, one warp a program: sums over rows cost most where warps must share them."""
WIDTH, WARPS, ROWS, AHEAD = 256, 16, 2, 4
"""What the kernel in CUDA knows: the width, a block's warps, the rows of one at a time, and how many times as many it
fetches ahead."""
BACKWARD = Kernel("norm_backward", ("norm",), WARPS * AHEAD * ROWS * 4 * WIDTH, threads=32 * WARPS, together=1)


@triton.jit(do_not_specialize=["site"])
def _norm_forward(  # type: ignore[no-untyped-def]
    branch, residual, out, mean, rstd, gamma, beta, keys, site, tokens, length, threshold, grow, eps,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
    place = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
    z = tl.load(branch + place, inside, 0.0).to(tl.float32)
    if DROP:
        words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
        z = tl.where(kept(words_R, 0, threshold, C), z * grow, 0.0)
    z += tl.load(residual + place, inside, 0.0).to(tl.float32)
    mean_R = tl.sum(z, 1) / D
    c = tl.where(inside, z - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(c * c, 1) / D + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < D, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < D, 0.0)
    kind = out.dtype.element_ty
    tl.store(branch + place, z.to(kind), inside)
    tl.store(out + place, (c * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]).to(kind), inside)
    tl.store(mean + rows_R, mean_R, rows_R < tokens)
    tl.store(rstd + rows_R, rstd_R, rows_R < tokens)


@triton.jit(do_not_specialize=["site"])
def _norm_backward(  # type: ignore[no-untyped-def]
    gradient, summed, branch, sums, mean, rstd, gamma, keys, site, tokens, length, threshold, grow, steps,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < D, 0.0)
    d_gamma = tl.zeros([R, C], tl.float32)
    d_beta = tl.zeros([R, C], tl.float32)
    d_bias = tl.zeros([R, C], tl.float32)
    kind = branch.dtype.element_ty
    for step in tl.range(steps, num_stages=3):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
        place = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
        mean_R = tl.load(mean + rows_R, rows_R < tokens, 0.0)
        rstd_R = tl.load(rstd + rows_R, rows_R < tokens, 0.0)
        dy = tl.load(gradient + place, inside, 0.0).to(tl.float32)
        x = (tl.load(summed + place, inside, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None]
        x = tl.where(inside, x, 0.0)
        d_gamma += dy * x
        d_beta += dy
        dy = dy * gamma_C[None, :]
        level_R = tl.sum(dy, 1) / D
        slope_R = tl.sum(dy * x, 1) / D
        dz = (dy - level_R[:, None] - x * slope_R[:, None]) * rstd_R[:, None]
        tl.store(summed + place, dz.to(kind), inside)
        if DROP:
            words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
            dz = tl.where(kept(words_R, 0, threshold, C), dz * grow, 0.0)
        tl.store(branch + place, dz.to(kind), inside)
        d_bias += tl.where(inside, dz, 0.0)
    line = sums + tl.program_id(0).to(tl.int64) * 3 * D + columns_C
    tl.store(line, tl.sum(d_gamma, 0), columns_C < D)
    tl.store(line + D, tl.sum(d_beta, 0), columns_C < D)
    tl.store(line + 2 * D, tl.sum(d_bias, 0), columns_C < D)


def add_norm(
    branch_TD: Tensor, residual_TD: Tensor, gamma_D: Tensor, beta_D: Tensor, drop: Drop,
    *, length: int, eps: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill `out` with LayerNorm(residual + dropout(branch)); each row's mean and inverse deviation.

    `branch_TD` is overwritten with the sum, which the way back needs too.
    """
    tokens, width = branch_TD.shape
    rows, block = tile(width, TILE)
    mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=branch_TD.device).unbind()
    keys = branch_TD if drop.keys_B is None else drop.keys_B
    _norm_forward[(triton.cdiv(tokens, rows),)](
        branch_TD, residual_TD, out, mean_T, rstd_T, gamma_D, beta_D, keys, drop.site, tokens, length,
        drop.threshold, drop.grow, eps,
        D=width, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=4,
    )  # fmt: skip
    return mean_T, rstd_T


def lines_of(like_TD: Tensor) -> int:
    """How many lines of sums `add_norm_backward` writes."""
    tokens, width = like_TD.shape
    if _fits(like_TD):
        return min(native.processors(like_TD.device), -(-tokens // (WARPS * ROWS)))
    rows, _ = tile(width, TILE_BACK)
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
    if _fits(summed_TD):
        launch(
            BACKWARD, len(sums_P3D), aligned(gradient_TD), summed_TD, branch_TD, sums_P3D, mean_T, rstd_T, gamma_D,
            drop.keys_B, drop.site, tokens, length, drop.threshold, drop.grow,
        )  # fmt: skip
        return
    rows, block = tile(width, TILE_BACK)
    keys = summed_TD if drop.keys_B is None else drop.keys_B
    _norm_backward[(len(sums_P3D),)](
        gradient_TD, summed_TD, branch_TD, sums_P3D, mean_T, rstd_T, gamma_D, keys, drop.site, tokens, length,
        drop.threshold, drop.grow, _steps(tokens, rows),
        D=width, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
    )  # fmt: skip


def tile(width: int, elements: int) -> tuple[int, int]:
    """Rows of a program that holds so many elements, and the power of two that holds a row."""
    block = triton.next_power_of_2(width)
    return max(1, elements // block), block


def _fits(like_TD: Tensor) -> bool:
    return like_TD.shape[1] == WIDTH and native.can_run(like_TD, BACKWARD)


def _steps(tokens: int, rows: int) -> int:
    steps: int = max(1, triton.cdiv(tokens, rows * MOST_PROGRAMS))
    return steps
