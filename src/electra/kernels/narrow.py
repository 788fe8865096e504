"""The feed-forward half of a narrow layer in one kernel each way: nothing in between leaves the chip.

Shapes: T tokens, D width, H = D / 2, F inner width, R rows of a program, C inner columns at a time, P programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.gelu import _bell_and_phi
from electra.kernels.hashing import Drop, kept, precision, row_words

WIDTHS = (32, 64, 128)
ROWS, COLUMNS = 64, 64
WARPS = 8


@triton.jit(do_not_specialize=["site"])
def _narrow_forward(  # type: ignore[no-untyped-def]
    x, up, up_bias, down, down_bias, gamma, beta, summed, out, mean, rstd,
    keys, site, tokens, length, threshold, grow, eps,
    H: tl.constexpr, F: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = 2 * H
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    half_H = tl.arange(0, H)
    inner_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None]
    place = rows_R.to(tl.int64)[:, None] * D + half_H[None, :]
    x0 = tl.load(x + place, inside, 0.0)
    x1 = tl.load(x + place + H, inside, 0.0)
    f0 = tl.zeros([R, H], tl.float32)
    f1 = tl.zeros([R, H], tl.float32)
    for start in range(0, F, C):
        row_CH = up + (start + inner_C)[:, None] * D + half_H[None, :]
        u = tl.dot(x0, tl.trans(tl.load(row_CH)), input_precision=PRECISION)
        u = tl.dot(x1, tl.trans(tl.load(row_CH + H)), u, input_precision=PRECISION)
        u += tl.load(up_bias + start + inner_C).to(tl.float32)[None, :]
        _, phi = _bell_and_phi(u)
        a = (u * phi).to(x0.dtype)
        row_HC = down + half_H[:, None] * F + (start + inner_C)[None, :]
        f0 = tl.dot(a, tl.trans(tl.load(row_HC)), f0, input_precision=PRECISION)
        f1 = tl.dot(a, tl.trans(tl.load(row_HC + H * F)), f1, input_precision=PRECISION)
    f0 += tl.load(down_bias + half_H).to(tl.float32)[None, :]
    f1 += tl.load(down_bias + H + half_H).to(tl.float32)[None, :]
    if DROP:
        words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
        keep0, keep1 = kept(words_R, half_H, threshold)
        f0 = tl.where(keep0, f0 * grow, 0.0)
        f1 = tl.where(keep1, f1 * grow, 0.0)
    z0 = x0.to(tl.float32) + f0
    z1 = x1.to(tl.float32) + f1
    mean_R = (tl.sum(z0, 1) + tl.sum(z1, 1)) / D
    c0 = z0 - mean_R[:, None]
    c1 = z1 - mean_R[:, None]
    rstd_R = tl.rsqrt((tl.sum(c0 * c0, 1) + tl.sum(c1 * c1, 1)) / D + eps)
    kind = out.dtype.element_ty
    tl.store(summed + place, z0.to(kind), inside)
    tl.store(summed + place + H, z1.to(kind), inside)
    y0 = c0 * rstd_R[:, None] * tl.load(gamma + half_H)[None, :] + tl.load(beta + half_H)[None, :]
    y1 = c1 * rstd_R[:, None] * tl.load(gamma + H + half_H)[None, :] + tl.load(beta + H + half_H)[None, :]
    tl.store(out + place, y0.to(kind), inside)
    tl.store(out + place + H, y1.to(kind), inside)
    tl.store(mean + rows_R, mean_R, rows_R < tokens)
    tl.store(rstd + rows_R, rstd_R, rows_R < tokens)


@triton.jit(do_not_specialize=["site"])
def _narrow_backward(  # type: ignore[no-untyped-def]
    gradient, x, up, up_bias, down, gamma, summed, mean, rstd, branch, active, inner, norm_sums, bias_sums,
    keys, site, tokens, length, threshold, grow,
    H: tl.constexpr, F: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = 2 * H
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    half_H = tl.arange(0, H)
    inner_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None]
    place = rows_R.to(tl.int64)[:, None] * D + half_H[None, :]
    mean_R = tl.load(mean + rows_R, rows_R < tokens, 0.0)
    rstd_R = tl.load(rstd + rows_R, rows_R < tokens, 0.0)
    n0 = tl.where(
        inside, (tl.load(summed + place, inside, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None], 0.0
    )
    n1 = tl.where(
        inside, (tl.load(summed + place + H, inside, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None], 0.0
    )
    dy0 = tl.load(gradient + place, inside, 0.0).to(tl.float32)
    dy1 = tl.load(gradient + place + H, inside, 0.0).to(tl.float32)
    line = norm_sums + tl.program_id(0).to(tl.int64) * 3 * D + half_H
    tl.store(line, tl.sum(dy0 * n0, 0))
    tl.store(line + H, tl.sum(dy1 * n1, 0))
    tl.store(line + D, tl.sum(dy0, 0))
    tl.store(line + D + H, tl.sum(dy1, 0))
    dy0 = dy0 * tl.load(gamma + half_H)[None, :]
    dy1 = dy1 * tl.load(gamma + H + half_H)[None, :]
    level_R = (tl.sum(dy0, 1) + tl.sum(dy1, 1)) / D
    slope_R = (tl.sum(dy0 * n0, 1) + tl.sum(dy1 * n1, 1)) / D
    dx0 = (dy0 - level_R[:, None] - n0 * slope_R[:, None]) * rstd_R[:, None]
    dx1 = (dy1 - level_R[:, None] - n1 * slope_R[:, None]) * rstd_R[:, None]
    df0 = dx0
    df1 = dx1
    if DROP:
        words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
        keep0, keep1 = kept(words_R, half_H, threshold)
        df0 = tl.where(keep0, df0 * grow, 0.0)
        df1 = tl.where(keep1, df1 * grow, 0.0)
    tl.store(line + 2 * D, tl.sum(df0, 0))
    tl.store(line + 2 * D + H, tl.sum(df1, 0))
    x0 = tl.load(x + place, inside, 0.0)
    x1 = tl.load(x + place + H, inside, 0.0)
    kind = x0.dtype
    g0 = df0.to(kind)
    g1 = df1.to(kind)
    tl.store(branch + place, g0, inside)
    tl.store(branch + place + H, g1, inside)
    for start in range(0, F, C):
        row_CH = up + (start + inner_C)[:, None] * D + half_H[None, :]
        u0 = tl.load(row_CH)
        u1 = tl.load(row_CH + H)
        u = tl.dot(x0, tl.trans(u0), input_precision=PRECISION)
        u = tl.dot(x1, tl.trans(u1), u, input_precision=PRECISION)
        u += tl.load(up_bias + start + inner_C).to(tl.float32)[None, :]
        bell, phi = _bell_and_phi(u)
        row_HC = down + half_H[:, None] * F + (start + inner_C)[None, :]
        du = tl.dot(g0, tl.load(row_HC), input_precision=PRECISION)
        du = tl.dot(g1, tl.load(row_HC + H * F), du, input_precision=PRECISION)
        du = du * (phi + u * bell * 0.3989422804014327)
        wide = rows_R.to(tl.int64)[:, None] * F + (start + inner_C)[None, :]
        tl.store(active + wide, (u * phi).to(kind), inside)
        tl.store(bias_sums + tl.program_id(0).to(tl.int64) * F + start + inner_C, tl.sum(tl.where(inside, du, 0.0), 0))
        du = du.to(kind)
        tl.store(inner + wide, du, inside)
        dx0 = tl.dot(du, u0, dx0, input_precision=PRECISION)
        dx1 = tl.dot(du, u1, dx1, input_precision=PRECISION)
    tl.store(summed + place, dx0.to(kind), inside)
    tl.store(summed + place + H, dx1.to(kind), inside)


def fits(width: int, inner: int) -> bool:
    """Whether the kernels know these sizes."""
    return width in WIDTHS and inner % COLUMNS == 0


def feed_forward(
    x_TD: Tensor, up_FD: Tensor, up_bias_F: Tensor, down_DF: Tensor, down_bias_D: Tensor, gamma_D: Tensor,
    beta_D: Tensor, drop: Drop, *, length: int, eps: float, out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Fill `out` with LayerNorm(x + dropout(feed-forward(x))); the sum, and each row's mean and inverse deviation."""
    tokens, width = x_TD.shape
    summed_TD = torch.empty_like(x_TD)
    mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    keys = x_TD if drop.keys_B is None else drop.keys_B
    _narrow_forward[(triton.cdiv(tokens, ROWS),)](
        x_TD, up_FD, up_bias_F, down_DF, down_bias_D, gamma_D, beta_D, summed_TD, out, mean_T, rstd_T, keys,
        drop.site, tokens, length, drop.threshold, drop.grow, eps,
        H=width // 2, F=len(up_FD), R=ROWS, C=COLUMNS, DROP=drop.keys_B is not None,
        PRECISION=precision(x_TD.dtype), num_warps=WARPS,
    )  # fmt: skip
    return summed_TD, mean_T, rstd_T


def programs(tokens: int) -> int:
    """How many lines of sums `feed_forward_backward` writes."""
    lines: int = triton.cdiv(tokens, ROWS)
    return lines


def feed_forward_backward(
    gradient_TD: Tensor, x_TD: Tensor, up_FD: Tensor, up_bias_F: Tensor, down_DF: Tensor, gamma_D: Tensor,
    summed_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, drop: Drop, norm_sums_P3D: Tensor, bias_sums_PF: Tensor,
    *, length: int, into: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Overwrite `summed_TD` with the gradient of `x_TD`.

    `into` takes what the weights' gradients are products of: the branch's gradient, the GELU's output, and the gradient
    before it. The sums get, line by line, what adds up to the gradients of gamma, beta and both biases.
    """
    tokens, width = x_TD.shape
    keys = x_TD if drop.keys_B is None else drop.keys_B
    branch_TD, active_TF, inner_TF = into
    _narrow_backward[(len(norm_sums_P3D),)](
        gradient_TD, x_TD, up_FD, up_bias_F, down_DF, gamma_D, summed_TD, mean_T, rstd_T, branch_TD, active_TF,
        inner_TF, norm_sums_P3D, bias_sums_PF, keys, drop.site, tokens, length, drop.threshold, drop.grow,
        H=width // 2, F=len(up_FD), R=ROWS, C=COLUMNS, DROP=drop.keys_B is not None,
        PRECISION=precision(x_TD.dtype), num_warps=WARPS,
    )  # fmt: skip
