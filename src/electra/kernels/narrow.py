"""Narrow layers in one kernel there and one back: a block takes a whole text through all of them.

Layers as narrow as a generator's leave the chip idle between launches, and a text of theirs fits on one multiprocessor.
The gradients of weights are left to products over all texts, for which what they need is written out. Other layers, and
longer or few texts, take the pieces that `layer` and `stack` are made of. The plain twin is `model.layers.Layer`.

Shapes: T = B·L tokens, D width, F inner width, K layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from electra.kernels import native
from electra.kernels.hashing import Drop
from electra.kernels.native import HEAD, LONGEST, TILE, Kernel, aligned, launch

INNER = 256
MOST_LAYERS = 24
"""That there is room for in what the kernels are told."""
AT_ONCE = MOST_LAYERS
"""Layers of a launch."""
FEWEST_TEXTS = 64
"""With fewer, most of the chip would wait."""

_THREADS = 512
FORWARD = Kernel(
    "narrow_forward", ("group", "pair", "scores", "narrow"), 12 * TILE + 256 + (2 * 832 + 3 * 4 * LONGEST) * 4,
    threads=_THREADS, together=1,
)  # fmt: skip
BACKWARD = Kernel(
    "narrow_backward", ("group", "pair", "scores", "narrow_back"),
    12 * TILE + LONGEST * 60 + 256 + (8 * (INNER + 2 * 192) + 5 * LONGEST + 2 * HEAD) * 4,
    threads=_THREADS, together=1,
)  # fmt: skip


def fits(x_BLD: Tensor, *, heads: int, inner: int) -> bool:
    """Whether the kernels know such layers and have enough to do."""
    texts, length, width = x_BLD.shape
    known = heads == 1 and width == HEAD and inner == INNER and length <= LONGEST
    return known and texts >= FEWEST_TEXTS and native.can_run(x_BLD, FORWARD) and native.can_run(x_BLD, BACKWARD)


def run_layers(
    x_TD: Tensor, blocks: Sequence[tuple[Tensor, ...]], lengths_B: Tensor | None, drops: Sequence[list[Drop]],
    *, length: int, eps: float, into: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Layers one after another; `blocks` are their weights, as `layer.Block` orders them.

    `into` takes of each (K, T, 3·D) queries, keys and values, (K, T, D) their mixture, (K, T, D) the first norm's
    output, (K, T, F) what the GELU is given, and (K, T, D) the layer's output. Returned, of each layer: attention's
    log-sums as `attention.attend` gives them; for each norm the sum under it, and each row's mean and inverse
    deviation.
    """
    count, (tokens, width) = len(blocks), x_TD.shape
    qkv, mixed, y, inner, z = into
    sum1, sum2 = torch.empty(2, count, tokens, width, dtype=x_TD.dtype, device=x_TD.device).unbind()
    level, mean1, rstd1, mean2, rstd2 = torch.empty(5, count, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    given = x_TD
    for group in _groups(count):
        told, held = _layers(blocks[group], drops[group])
        places = (array[group] for array in (qkv, mixed, level, sum1, mean1, rstd1, y, inner, sum2, mean2, rstd2, z))
        launch(
            FORWARD, tokens // length, told, len(held), given, *places, lengths_B, *_common(drops[0], tokens, length),
            eps, drops[0][0].keys_B is not None, drops[0][1].keys_B is not None,
        )  # fmt: skip
        given = z[group][-1]
    return level, sum1, mean1, rstd1, sum2, mean2, rstd2


def run_backward(
    gradient_TD: Tensor, blocks: Sequence[tuple[Tensor, ...]], kept: tuple[Tensor, ...], lengths_B: Tensor | None,
    drops: Sequence[list[Drop]], into: tuple[Tensor, ...], lines: tuple[Tensor, ...], *, length: int,
) -> Tensor:  # fmt: skip
    """The gradient of the first layer's input, from that of the last one's output. All arrays are of all layers.

    `kept`: queries, keys and values, overwritten with their gradients; their mixture; attention's log-sums; what the
    GELU was given, overwritten with its output; of each norm the sum under it, mean and inverse deviation. `into`: the
    gradients of the second product's output, before the GELU, and of attention's output. `lines`, one a text: of the
    first and the second norm (with the bias before it), of the GELU's bias, of queries, keys and values.
    """
    tokens = len(gradient_TD)
    qkv, mixed, level, inner, *norms = kept
    for group in reversed(_groups(len(blocks))):
        told, held = _layers(blocks[group], drops[group])
        places = (array[group] for array in (qkv, mixed, level, *norms[:3], inner, *norms[3:], *into))
        d_x_TD = torch.empty_like(gradient_TD)
        launch(
            BACKWARD, tokens // length, told, len(held), gradient_TD, *places, d_x_TD,
            *(line[group] for line in lines), lengths_B, *_common(drops[0], tokens, length),
            drops[0][0].keys_B is not None, drops[0][1].keys_B is not None,
        )  # fmt: skip
        gradient_TD = d_x_TD
    return gradient_TD


def _groups(count: int) -> list[slice]:
    return [slice(first, first + AT_ONCE) for first in range(0, count, AT_ONCE)]


def _layers(blocks: Sequence[tuple[Tensor, ...]], drops: Sequence[list[Drop]]) -> tuple[bytes, list[list[Tensor]]]:
    """What the kernels are told of layers, and the weights that it names."""
    held = [[aligned(weight) if weight.dim() == 2 else weight for weight in block] for block in blocks]
    told = b"".join(
        struct.pack("12Q4i", *(weight.data_ptr() for weight in weights), *(drop.site for drop in three), 0)
        for weights, three in zip(held, drops, strict=True)
    )
    return told.ljust(MOST_LAYERS * struct.calcsize("12Q4i"), b"\0"), held


def _common(drops: list[Drop], tokens: int, length: int) -> tuple[Tensor | int | float | None, ...]:
    """The texts' keys, sizes, and how dropout goes: threshold and growth, of attention and of the two others."""
    keys = next((drop.keys_B for drop in drops if drop.keys_B is not None), None)
    rates = (drops[0].threshold, drops[0].grow, drops[1].threshold, drops[1].grow)
    return keys, tokens // length, length, HEAD**-0.5, *rates
