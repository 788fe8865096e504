"""A narrow layer's way back in one kernel: a program takes a whole text from its last norm to its input.

What products of weights need is written out; the sums of biases and norms are one line a text. The way there is in
`narrow`.

Shapes: T = B·L tokens, D width, F inner width, W columns of it at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.attention import softmax
from electra.kernels.gelu import gelu_of, slope_of
from electra.kernels.hashing import Drop, kept, precision, row_words
from electra.kernels.narrow import COLUMNS, WARPS


@triton.jit
def _norm_drop_back(  # type: ignore[no-untyped-def]
    dy, summed, mean, rstd, gamma, words_L, rows_L, place, inside, threshold, grow, line,
    D: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The gradients of the residual and of the branch, both in fp32; `line` gets those of gamma, beta and the bias."""
    all_D = tl.arange(0, D)
    mean_L = tl.load(mean + rows_L, rows_L >= 0, 0.0)
    rstd_L = tl.load(rstd + rows_L, rows_L >= 0, 0.0)
    x = (tl.load(summed + place, inside, 0.0).to(tl.float32) - mean_L[:, None]) * rstd_L[:, None]
    tl.store(line + all_D, tl.sum(dy * x, 0))
    tl.store(line + D + all_D, tl.sum(dy, 0))
    dy = dy * tl.load(gamma + all_D)[None, :]
    level_L = tl.sum(dy, 1) / D
    slope_L = tl.sum(dy * x, 1) / D
    dz = (dy - level_L[:, None] - x * slope_L[:, None]) * rstd_L[:, None]
    branch = dz
    if DROP:
        branch = tl.where(kept(words_L, 0, threshold, D), dz * grow, 0.0)
    tl.store(line + 2 * D + all_D, tl.sum(branch, 0))
    return dz, branch


@triton.jit(do_not_specialize=["site0", "site1", "site2"])
def _narrow_backward(  # type: ignore[no-untyped-def]
    gradient, qkv_w, out_w, gamma1, up_w, down_w, gamma2,
    qkv, sum1, mean1, rstd1, inner, sum2, mean2, rstd2,
    d_down, d_inner, d_out, d_x, lines1, lines2, up_lines, qkv_lines,
    lengths, keys, site0, site1, site2, length, scale,
    attention_threshold, attention_grow, threshold, grow,
    D: tl.constexpr, F: tl.constexpr, W: tl.constexpr, L: tl.constexpr,
    RAGGED: tl.constexpr, ATTENTION_DROP: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = d_x.dtype.element_ty
    text = tl.program_id(0)
    first = text.to(tl.int64) * length
    rows_L = tl.arange(0, L)
    all_D = tl.arange(0, D)
    inner_W = tl.arange(0, W)
    inside = (rows_L < length)[:, None]
    tokens_L = tl.where(rows_L < length, first + rows_L, -1)
    place = first * D + rows_L[:, None] * D + all_D[None, :]
    square = all_D[:, None] * D + all_D[None, :]
    words_L = rows_L
    if DROP:
        words_L = row_words(tl.load(keys + text), site2, rows_L)
    incoming = tl.load(gradient + place, inside, 0.0).to(tl.float32)
    dy, branch = _norm_drop_back(
        incoming, sum2, mean2, rstd2, gamma2, words_L, tokens_L, place, inside, threshold, grow, lines2 + text * 3 * D,
        D, DROP,
    )  # fmt: skip
    down_LD = branch.to(kind)
    tl.store(d_down + place, down_LD, inside)
    wide = first * F + rows_L[:, None] * F + inner_W[None, :]
    for start in range(0, F, W):
        columns_W = start + inner_W
        du = tl.dot(down_LD, tl.load(down_w + all_D[:, None] * F + columns_W[None, :]), input_precision=PRECISION)
        u = tl.load(inner + wide + start, inside, 0.0).to(tl.float32)
        du = du * slope_of(u, kind)
        tl.store(up_lines + text * F + columns_W, tl.sum(du, 0))
        tl.store(inner + wide + start, gelu_of(u, kind).to(kind), inside)
        du_LW = du.to(kind)
        tl.store(d_inner + wide + start, du_LW, inside)
        dy = tl.dot(du_LW, tl.load(up_w + columns_W[:, None] * D + all_D[None, :]), dy, input_precision=PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site1, rows_L)
    dx, branch = _norm_drop_back(
        dy, sum1, mean1, rstd1, gamma1, words_L, tokens_L, place, inside, threshold, grow, lines1 + text * 3 * D,
        D, DROP,
    )  # fmt: skip
    out_LD = branch.to(kind)
    tl.store(d_out + place, out_LD, inside)
    do = tl.dot(out_LD, tl.load(out_w + square), input_precision=PRECISION).to(kind)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    here = qkv + first * 3 * D + rows_L[:, None] * (3 * D) + all_D[None, :]
    q = tl.load(here, inside, 0.0)
    k = tl.load(here + D, inside, 0.0)
    v = tl.load(here + 2 * D, inside, 0.0)
    e, share_L = softmax(q, k, rows_L < visible, scale, PRECISION)
    if ATTENTION_DROP:
        words_L = row_words(tl.load(keys + text), site0, rows_L)
        m = tl.where(kept(words_L, 0, attention_threshold, L), e * (share_L * attention_grow)[:, None], 0.0)
    else:
        m = e * share_L[:, None]
    d = tl.dot(do, tl.trans(v), input_precision=PRECISION) * m
    dv = tl.dot(tl.trans(m.to(kind)), do, input_precision=PRECISION)
    s = (d - e * (tl.sum(d, 1) * share_L)[:, None]).to(kind)
    dq = tl.dot(s, k, input_precision=PRECISION) * scale
    dk = tl.dot(tl.trans(s), q, input_precision=PRECISION) * scale
    line = qkv_lines + text * 3 * D + all_D
    tl.store(line, tl.sum(dq, 0))
    tl.store(line + D, tl.zeros([D], tl.float32))  # what is added to all keys changes no softmax
    tl.store(line + 2 * D, tl.sum(dv, 0))
    tl.debug_barrier()  # all that is overwritten has been read
    dq_LD, dk_LD, dv_LD = dq.to(kind), dk.to(kind), dv.to(kind)
    tl.store(here, dq_LD, inside)
    tl.store(here + D, dk_LD, inside)
    tl.store(here + 2 * D, dv_LD, inside)
    dx = tl.dot(dq_LD, tl.load(qkv_w + square), dx, input_precision=PRECISION)
    dx = tl.dot(dk_LD, tl.load(qkv_w + D * D + square), dx, input_precision=PRECISION)
    dx = tl.dot(dv_LD, tl.load(qkv_w + 2 * D * D + square), dx, input_precision=PRECISION)
    tl.store(d_x + place, dx.to(kind), inside)


def run_backward(
    gradient_TD: Tensor, weights: tuple[Tensor, ...], kept: tuple[Tensor, ...], lengths_B: Tensor | None,
    drops: list[Drop], into: tuple[Tensor, ...], lines: tuple[Tensor, ...], *, length: int,
) -> Tensor:  # fmt: skip
    """The gradient of one layer's input, from that of its output.

    `weights` as `layer.Block` orders them. `kept`: queries, keys and values, overwritten with their gradients; what the
    GELU was given, overwritten with its output; of each norm the sum under it, mean and inverse deviation. `into`: the
    gradients of the second product's output, before the GELU, and of attention's output. `lines`, one a text: of the
    first and the second norm (with the bias before it), of the GELU's bias, of queries, keys and values.
    """
    qkv_w, _, out_w, _, gamma1, _, up_w, _, down_w, _, gamma2, _ = weights
    d_x_TD = torch.empty_like(gradient_TD)
    tokens, width = gradient_TD.shape
    keys = next((drop.keys_B for drop in drops if drop.keys_B is not None), gradient_TD)
    qkv, inner, *norms = kept
    d_down, d_inner, d_out = into
    _narrow_backward[(tokens // length,)](
        gradient_TD, qkv_w, out_w, gamma1, up_w, down_w, gamma2,
        qkv, *norms[:3], inner, *norms[3:], d_down, d_inner, d_out, d_x_TD, *lines,
        gradient_TD if lengths_B is None else lengths_B, keys, *(drop.site for drop in drops),
        length, width**-0.5,
        drops[0].threshold, drops[0].grow, drops[1].threshold, drops[1].grow,
        D=width, F=inner.shape[1], W=COLUMNS, L=max(32, triton.next_power_of_2(length)),
        RAGGED=lengths_B is not None, ATTENTION_DROP=drops[0].keys_B is not None, DROP=drops[1].keys_B is not None,
        PRECISION=precision(gradient_TD.dtype), num_warps=WARPS,
    )  # fmt: skip
    return d_x_TD
