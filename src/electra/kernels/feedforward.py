"""The feed-forward half of a narrow layer in one kernel: what lies between its two products stays on the chip.

A program holds R rows of the input and goes over the inner width C columns at a time: up, GELU, down. The plain twin
is `model.layers.Layer`. Wider layers and fewer rows take the library's products and `gelu`, which are faster there, as
they are on the way back.

Shapes: T tokens, L length of a text, D width, H half of it (dropout draws one word for an element of each), F inner
width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.gelu import bell_and_phi
from electra.kernels.hashing import Drop, kept, precision, row_words


class Tile(NamedTuple):
    """Rows and columns of a program, and how it runs."""

    rows: int
    columns: int
    warps: int
    stages: int


TILES = {32: Tile(64, 64, 4, 3), 64: Tile(64, 64, 4, 3), 128: Tile(128, 64, 8, 2)}
FEWEST_PROGRAMS = 64
"""Below this much work most of the chip would wait, and the library's products are faster."""


@triton.jit(do_not_specialize=["site"])
def _forward(  # type: ignore[no-untyped-def]
    x, up, up_bias, down, down_bias, gamma, beta, inner, summed, out, mean, rstd,
    keys, site, tokens, length, threshold, grow, eps,
    H: tl.constexpr, F: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = 2 * H
    kind = out.dtype.element_ty
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    half_H = tl.arange(0, H)
    inner_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None]
    place = rows_R.to(tl.int64)[:, None] * D + half_H[None, :]
    wide = rows_R.to(tl.int64)[:, None] * F + inner_C[None, :]
    x0 = tl.load(x + place, inside, 0.0)
    x1 = tl.load(x + place + H, inside, 0.0)
    f0 = tl.zeros([R, H], tl.float32)
    f1 = tl.zeros([R, H], tl.float32)
    for start in tl.range(0, F, C, num_stages=STAGES):
        up_CH = up + (start + inner_C)[:, None] * D + half_H[None, :]
        u = tl.dot(x0, tl.trans(tl.load(up_CH)), input_precision=PRECISION)
        u = tl.dot(x1, tl.trans(tl.load(up_CH + H)), u, input_precision=PRECISION)
        u += tl.load(up_bias + start + inner_C).to(tl.float32)[None, :]
        u = u.to(kind)
        tl.store(inner + wide + start, u, inside)
        u = u.to(tl.float32)  # as rounded: the way back starts from what is kept
        _, phi = bell_and_phi(u)
        a = (u * phi).to(kind)
        down_HC = down + half_H[:, None] * F + (start + inner_C)[None, :]
        f0 = tl.dot(a, tl.trans(tl.load(down_HC)), f0, input_precision=PRECISION)
        f1 = tl.dot(a, tl.trans(tl.load(down_HC + H * F)), f1, input_precision=PRECISION)
    f0 += tl.load(down_bias + half_H).to(tl.float32)[None, :]
    f1 += tl.load(down_bias + H + half_H).to(tl.float32)[None, :]
    if DROP:
        words_R = row_words(tl.load(keys + rows_R // length, rows_R < tokens, 0), site, rows_R % length)
        keep0, keep1 = kept(words_R, half_H, threshold)
        f0 = tl.where(keep0, f0 * grow, 0.0)
        f1 = tl.where(keep1, f1 * grow, 0.0)
    # Read again: the products hold `x` in a form that sums cannot use.
    z0 = f0 + tl.load(x + place, inside, 0.0).to(tl.float32)
    z1 = f1 + tl.load(x + place + H, inside, 0.0).to(tl.float32)
    mean_R = (tl.sum(z0, 1) + tl.sum(z1, 1)) / D
    tl.store(summed + place, z0.to(kind), inside)
    tl.store(summed + place + H, z1.to(kind), inside)
    z0 = z0 - mean_R[:, None]
    z1 = z1 - mean_R[:, None]
    rstd_R = tl.rsqrt((tl.sum(z0 * z0, 1) + tl.sum(z1 * z1, 1)) / D + eps)
    y0 = z0 * rstd_R[:, None] * tl.load(gamma + half_H)[None, :] + tl.load(beta + half_H)[None, :]
    y1 = z1 * rstd_R[:, None] * tl.load(gamma + H + half_H)[None, :] + tl.load(beta + H + half_H)[None, :]
    tl.store(out + place, y0.to(kind), inside)
    tl.store(out + place + H, y1.to(kind), inside)
    tl.store(mean + rows_R, mean_R, rows_R < tokens)
    tl.store(rstd + rows_R, rstd_R, rows_R < tokens)


def fits(tokens: int, width: int, inner: int) -> bool:
    """Whether the kernels know these sizes and have enough to do."""
    if width not in TILES or inner % TILES[width].columns:
        return False
    rows: int = triton.cdiv(tokens, TILES[width].rows)
    return rows >= FEWEST_PROGRAMS


def feed_forward(
    x_TD: Tensor, up_FD: Tensor, up_bias_F: Tensor, down_DF: Tensor, down_bias_D: Tensor, gamma_D: Tensor,
    beta_D: Tensor, drop: Drop, *, length: int, eps: float, inner: Tensor, out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Fill `out` with LayerNorm(x + dropout(feed-forward(x))), `inner` (T, F) with what the GELU is given.

    Returned: the sum under the norm, and each row's mean and inverse deviation.
    """
    tokens, width = x_TD.shape
    tile = TILES[width]
    summed_TD = torch.empty_like(x_TD)
    mean_T, rstd_T = torch.empty(2, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    keys = x_TD if drop.keys_B is None else drop.keys_B
    _forward[(triton.cdiv(tokens, tile.rows),)](
        x_TD, up_FD, up_bias_F, down_DF, down_bias_D, gamma_D, beta_D, inner, summed_TD, out, mean_T, rstd_T, keys,
        drop.site, tokens, length, drop.threshold, drop.grow, eps,
        H=width // 2, F=len(up_FD), R=tile.rows, C=tile.columns, STAGES=tile.stages, DROP=drop.keys_B is not None,
        PRECISION=precision(x_TD.dtype), num_warps=tile.warps,
    )  # fmt: skip
    return summed_TD, mean_T, rstd_T
