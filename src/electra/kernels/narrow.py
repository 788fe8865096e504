"""A narrow layer in one kernel there and one back: a block takes a whole text through attention and feed-forward.

Layers as narrow as a generator's leave the chip idle between launches, and a text of theirs fits on one multiprocessor.
The gradients of weights are left to products over all texts, for which what they need is written out. Other layers, and
longer or few texts, take the pieces that `layer` and `stack` are made of. The plain twin is `model.layers.Layer`.

Shapes: T = B·L tokens, D width, F inner width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra.kernels import native
from electra.kernels.hashing import Drop
from electra.kernels.native import HEAD, LONGEST, TILE, Kernel, aligned, launch

INNER = 256
FEWEST_TEXTS = 64
"""With fewer, most of the chip would wait."""

_THREADS = 512
FORWARD = Kernel(
    "narrow_forward", ("group", "pair", "scores", "narrow"), 12 * TILE + 256 + (832 + 3 * 4 * LONGEST) * 4,
    threads=_THREADS, together=1, hopper=True,
)  # fmt: skip
BACKWARD = Kernel(
    "narrow_backward", ("group", "pair", "scores", "narrow_back"),
    12 * TILE + LONGEST * 60 + 256 + (8 * (INNER + 2 * 192) + 5 * LONGEST + 2 * HEAD) * 4,
    threads=_THREADS, together=1, hopper=True,
)  # fmt: skip


def fits(x_BLD: Tensor, *, heads: int, inner: int) -> bool:
    """Whether the kernels know such layers and have enough to do."""
    texts, length, width = x_BLD.shape
    known = heads == 1 and width == HEAD and inner == INNER and length <= LONGEST
    return known and texts >= FEWEST_TEXTS and native.can_run(x_BLD, FORWARD) and native.can_run(x_BLD, BACKWARD)


def run_layer(
    x_TD: Tensor, weights: tuple[Tensor, ...], lengths_B: Tensor | None, drops: list[Drop], *, length: int,
    eps: float, into: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer; `weights` as `layer.Block` orders them, `into` takes (T, 3·D) queries, keys and values, (T, D) their
    mixture, (T, D) the first norm's output, (T, F) what the GELU is given, and (T, D) the layer's output.

    Returned: attention's log-sums as `attention.attend` gives them; for each norm the sum under it, and each row's mean
    and inverse deviation.
    """
    tokens, width = x_TD.shape
    qkv, mixed, y, inner, z = into
    sum1, sum2 = torch.empty_like(x_TD), torch.empty_like(x_TD)
    level, mean1, rstd1, mean2, rstd2 = torch.empty(5, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    qkv_w, qkv_b, out_w, out_b, gamma1, beta1, up_w, up_b, down_w, down_b, gamma2, beta2 = weights
    launch(
        FORWARD, tokens // length, x_TD, aligned(qkv_w), qkv_b, aligned(out_w), out_b, gamma1, beta1,
        aligned(up_w), up_b, aligned(down_w), down_b, gamma2, beta2,
        qkv, mixed, level, sum1, mean1, rstd1, y, inner, sum2, mean2, rstd2, z,
        lengths_B, *_dropout(drops), length, width**-0.5, *_rates(drops), eps,
        drops[0].keys_B is not None, drops[1].keys_B is not None,
    )  # fmt: skip
    return level, sum1, mean1, rstd1, sum2, mean2, rstd2


def run_backward(
    gradient_TD: Tensor, weights: tuple[Tensor, ...], kept: tuple[Tensor, ...], lengths_B: Tensor | None,
    drops: list[Drop], into: tuple[Tensor, ...], lines: tuple[Tensor, ...], *, length: int,
) -> Tensor:  # fmt: skip
    """The gradient of one layer's input, from that of its output.

    `weights` as `layer.Block` orders them. `kept`: queries, keys and values, overwritten with their gradients; their
    mixture; attention's log-sums; what the GELU was given, overwritten with its output; of each norm the sum under it,
    mean and inverse deviation. `into`: the gradients of the second product's output, before the GELU, and of
    attention's output. `lines`, one a text: of the first and the second norm (with the bias before it), of the GELU's
    bias, of queries, keys and values.
    """
    qkv_w, _, out_w, _, gamma1, _, up_w, _, down_w, _, gamma2, _ = weights
    d_x_TD = torch.empty_like(gradient_TD)
    tokens, width = gradient_TD.shape
    qkv, mixed, level, inner, *norms = kept
    launch(
        BACKWARD, tokens // length, gradient_TD, aligned(qkv_w), aligned(out_w), gamma1, aligned(up_w), aligned(down_w),
        gamma2, qkv, mixed, level, *norms[:3], inner, *norms[3:], *into, d_x_TD, *lines,
        lengths_B, *_dropout(drops), length, width**-0.5, *_rates(drops),
        drops[0].keys_B is not None, drops[1].keys_B is not None,
    )  # fmt: skip
    return d_x_TD


def _dropout(drops: list[Drop]) -> tuple[Tensor | int | None, ...]:
    """The texts' keys, and the sites of the three."""
    keys = next((drop.keys_B for drop in drops if drop.keys_B is not None), None)
    return keys, *(drop.site for drop in drops)


def _rates(drops: list[Drop]) -> tuple[int | float, ...]:
    """Threshold and growth, of attention and of the two others."""
    return drops[0].threshold, drops[0].grow, drops[1].threshold, drops[1].grow
