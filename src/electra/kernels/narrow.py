"""A narrow layer's way there in one kernel: a program takes a whole text through attention and feed-forward.

Layers as narrow as a generator's leave the chip idle between launches, and a text of theirs fits on one multiprocessor.
What the way back needs is written out; the way back itself, wider layers and longer or few texts take the pieces that
`layer` and `stack` are made of. The plain twin is `model.layers.Layer`.

Shapes: T = B·L tokens, D width, F inner width, W columns of it at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.attention import LONGEST, softmax
from electra.kernels.gelu import gelu_of
from electra.kernels.hashing import Drop, kept, precision, row_words

WIDTHS = (32, 64)
"""Layers of one head. With several, what Triton 3.6 makes of the kernel is wrong on a GPU, or fails."""
COLUMNS = 64
WARPS = 8
FEWEST_TEXTS = 64
"""With fewer, most of the chip would wait."""


@triton.jit
def _linear(x, weight, bias, rows, columns, stride, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x · weightᵀ + bias in fp32, for some rows of a weight (its outputs) and some of its columns (its inputs)."""
    part = tl.load(weight + rows[:, None] * stride + columns[None, :])
    return tl.dot(x, tl.trans(part), input_precision=PRECISION) + tl.load(bias + rows).to(tl.float32)[None, :]


@triton.jit
def _drop_add_norm(  # type: ignore[no-untyped-def]
    f, residual, summed, out, mean, rstd, gamma, beta, words_L, rows_L, place, inside, threshold, grow, eps,
    D: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Dropout, residual and norm of a text; its rows in the compute type, as written to `out`."""
    kind = out.dtype.element_ty
    all_D = tl.arange(0, D)
    if DROP:
        f = tl.where(kept(words_L, 0, threshold, D), f * grow, 0.0)
    f += residual.to(tl.float32)
    tl.store(summed + place, f.to(kind), inside)
    mean_L = tl.sum(f, 1) / D
    f = f - mean_L[:, None]
    rstd_L = tl.rsqrt(tl.sum(f * f, 1) / D + eps)
    y = (f * rstd_L[:, None] * tl.load(gamma + all_D)[None, :] + tl.load(beta + all_D)[None, :]).to(kind)
    tl.store(out + place, y, inside)
    tl.store(mean + rows_L, mean_L, rows_L >= 0)
    tl.store(rstd + rows_L, rstd_L, rows_L >= 0)
    return y


@triton.jit(do_not_specialize=["site0", "site1", "site2"])
def _narrow_forward(  # type: ignore[no-untyped-def]
    x, qkv_w, qkv_b, out_w, out_b, gamma1, beta1, up_w, up_b, down_w, down_b, gamma2, beta2,
    qkv, mixed, sum1, mean1, rstd1, y, inner, sum2, mean2, rstd2, z,
    lengths, keys, site0, site1, site2, length, scale,
    attention_threshold, attention_grow, threshold, grow, eps,
    D: tl.constexpr, F: tl.constexpr, W: tl.constexpr, L: tl.constexpr,
    RAGGED: tl.constexpr, ATTENTION_DROP: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = z.dtype.element_ty
    text = tl.program_id(0)
    first = text.to(tl.int64) * length
    rows_L = tl.arange(0, L)
    all_D = tl.arange(0, D)
    inside = (rows_L < length)[:, None]
    base = x + first * D + all_D[None, :]
    x_LD = tl.load(base + rows_L[:, None] * D, inside, 0.0)
    visible = length
    if RAGGED:
        visible = tl.load(lengths + text).to(tl.int32)
    q = _linear(x_LD, qkv_w, qkv_b, all_D, all_D, D, PRECISION).to(kind)
    k = _linear(x_LD, qkv_w, qkv_b, D + all_D, all_D, D, PRECISION).to(kind)
    v = _linear(x_LD, qkv_w, qkv_b, 2 * D + all_D, all_D, D, PRECISION).to(kind)
    here = qkv + first * 3 * D + rows_L[:, None] * (3 * D) + all_D[None, :]
    tl.store(here, q, inside)
    tl.store(here + D, k, inside)
    tl.store(here + 2 * D, v, inside)
    # Rows past the end are the bias alone, and nobody sees them.
    e, share_L = softmax(q, k, rows_L < visible, scale, PRECISION)
    if ATTENTION_DROP:
        words_L = row_words(tl.load(keys + text), site0, rows_L)
        e = tl.where(kept(words_L, 0, attention_threshold, L), e, 0.0)
        share_L *= attention_grow
    m = (tl.dot(e.to(kind), v, input_precision=PRECISION) * share_L[:, None]).to(kind)
    tl.store(mixed + first * D + rows_L[:, None] * D + all_D[None, :], m, inside)
    f = _linear(m, out_w, out_b, all_D, all_D, D, PRECISION)
    place = first * D + rows_L[:, None] * D + all_D[None, :]
    tokens_L = tl.where(rows_L < length, first + rows_L, -1)
    words_L = rows_L
    if DROP:
        words_L = row_words(tl.load(keys + text), site1, rows_L)
    y_LD = _drop_add_norm(
        f, x_LD, sum1, y, mean1, rstd1, gamma1, beta1, words_L, tokens_L, place, inside, threshold, grow, eps, D, DROP
    )
    f = tl.zeros([L, D], tl.float32) + tl.load(down_b + all_D).to(tl.float32)[None, :]
    inner_W = tl.arange(0, W)
    wide = first * F + rows_L[:, None] * F + inner_W[None, :]
    for start in range(0, F, W):
        u = _linear(y_LD, up_w, up_b, start + inner_W, all_D, D, PRECISION)
        tl.store(inner + wide + start, u.to(kind), inside)
        a = gelu_of(u, kind).to(kind)
        down_DW = down_w + all_D[:, None] * F + (start + inner_W)[None, :]
        f = tl.dot(a, tl.trans(tl.load(down_DW)), f, input_precision=PRECISION)
    if DROP:
        words_L = row_words(tl.load(keys + text), site2, rows_L)
    _drop_add_norm(
        f, y_LD, sum2, z, mean2, rstd2, gamma2, beta2, words_L, tokens_L, place, inside, threshold, grow, eps, D, DROP
    )


def fits(texts: int, length: int, width: int, head: int, inner: int) -> bool:
    """Whether the kernel knows these sizes and has enough to do."""
    known = width in WIDTHS and head == width and inner % COLUMNS == 0 and 16 <= length <= LONGEST
    return known and texts >= FEWEST_TEXTS


def run_layer(
    x_TD: Tensor, weights: tuple[Tensor, ...], lengths_B: Tensor | None, drops: list[Drop], *, length: int,
    eps: float, into: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer; `weights` as `layer.Block` orders them, `into` takes (T, 3·D) queries, keys and values, (T, D) their
    mixture, (T, D) the first norm's output, (T, F) what the GELU is given, and (T, D) the layer's output.

    Returned: for each norm the sum under it, and each row's mean and inverse deviation.
    """
    tokens, width = x_TD.shape
    qkv, mixed, y, inner, z = into
    sum1, sum2 = torch.empty_like(x_TD), torch.empty_like(x_TD)
    mean1, rstd1, mean2, rstd2 = torch.empty(4, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    keys = next((drop.keys_B for drop in drops if drop.keys_B is not None), x_TD)
    block = max(32, triton.next_power_of_2(length))
    _narrow_forward[(tokens // length,)](
        x_TD, *weights, qkv, mixed, sum1, mean1, rstd1, y, inner, sum2, mean2, rstd2, z,
        x_TD if lengths_B is None else lengths_B, keys, *(drop.site for drop in drops),
        length, width**-0.5,
        drops[0].threshold, drops[0].grow, drops[1].threshold, drops[1].grow, eps,
        D=width, F=inner.shape[1], W=COLUMNS, L=block,
        RAGGED=lengths_B is not None, ATTENTION_DROP=drops[0].keys_B is not None, DROP=drops[1].keys_B is not None,
        PRECISION=precision(x_TD.dtype), num_warps=WARPS,
    )  # fmt: skip
    return sum1, mean1, rstd1, sum2, mean2, rstd2
