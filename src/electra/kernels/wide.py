"""Layers of width 256 in one kernel on the way there: a block takes a whole text through all of them.

As in `narrow`, a text of at most 128 tokens stays on one multiprocessor, and weights stream past it. What the way back
needs is written out, as `layer.run_layer` does it. Other layers, and longer or few texts, take the pieces. The plain
twin is `model.layers.Layer`.

Shapes: T = B·L tokens, D width, F inner width, K layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from electra.kernels import native
from electra.kernels.hashing import Drop
from electra.kernels.native import HEAD, LONGEST, TILE, Boxes, Kernel, aligned, launch

WIDTH, HEADS, INNER = 256, 4, 1024
MOST_LAYERS = 12
"""That there is room for in what the kernel is told."""
AT_ONCE = MOST_LAYERS
"""Layers of a launch."""
FEWEST_TOKENS = 12_500
"""Each time that all multiprocessors take a text; with fewer, the pieces waste less."""
FORWARD = Kernel(
    "wide_forward", ("group", "heads", "ring", "wide"), 14 * TILE + 192 + 512 + 2048, threads=384, together=1
)


def fits(x_BLD: Tensor, *, heads: int, inner: int) -> bool:
    """Whether the kernel knows such layers and has enough to do."""
    texts, length, width = x_BLD.shape
    known = heads == HEADS and width == WIDTH and inner == INNER and length <= LONGEST
    times = -(-texts // native.processors(x_BLD.device))
    return known and texts * length >= FEWEST_TOKENS * times and native.can_run(x_BLD, FORWARD)


def run_layers(
    x_TD: Tensor, blocks: Sequence[tuple[Tensor, ...]], lengths_B: Tensor | None, drops: Sequence[list[Drop]],
    *, length: int, eps: float, into: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Layers one after another; `blocks` are their weights, as `layer.Block` orders them.

    `into` takes of each (K, T, 3·D) queries, keys and values, (K, T, D) their mixture, (K, T, D) the first norm's
    output, (K, T, F) what the GELU is given, (K, T, F) its output, and (K, T, D) the layer's output. Returned, of each
    layer: attention's log-sums as `attention.attend` gives them; for each norm the sum under it, and each row's mean
    and inverse deviation.
    """
    count, (tokens, width) = len(blocks), x_TD.shape
    texts = tokens // length
    sums = torch.empty(2, count, tokens, width, dtype=x_TD.dtype, device=x_TD.device).unbind()
    level = torch.empty(count, tokens * HEADS, dtype=torch.float32, device=x_TD.device)
    means = torch.empty(4, count, tokens, dtype=torch.float32, device=x_TD.device).unbind()
    qkv, mixed, y, inner, active, z = into
    given = x_TD
    for first in range(0, count, AT_ONCE):
        group = slice(first, first + AT_ONCE)
        told, held = _layers(blocks[group], drops[group])
        arrays = (array[group] for array in (sums[0], y, inner, active, sums[1], z))
        keys = next((drop.keys_B for drop in drops[0] if drop.keys_B is not None), None)
        rates = (drops[0][0].threshold, drops[0][0].grow, drops[0][1].threshold, drops[0][1].grow)
        launch(
            FORWARD, texts, told, len(held), _rows(given, length),
            _rows(qkv[group], length), _rows(mixed[group], length), *arrays, level[group],
            *(mean[group] for mean in means), lengths_B, keys, texts, length, HEAD**-0.5, *rates, eps,
            drops[0][0].keys_B is not None, drops[0][1].keys_B is not None,
        )  # fmt: skip
        given = z[group][-1]
    return level, sums[0], *means[:2], sums[1], *means[2:]


def _rows(array: Tensor, length: int) -> Boxes:
    """What a group of warps reads and writes of one array, or of one over layers."""
    return Boxes(array.view(-1, array.shape[-1]), LONGEST // 2, length)


def _layers(blocks: Sequence[tuple[Tensor, ...]], drops: Sequence[list[Drop]]) -> tuple[bytes, list[list[Tensor]]]:
    """What the kernel is told of layers, and the weights that it names."""
    held = [[aligned(weight) if weight.dim() == 2 else weight for weight in block] for block in blocks]
    told = b""
    for weights, three in zip(held, drops, strict=True):
        matrices = [weight for weight in weights if weight.dim() == 2]
        vectors = [weight for weight in weights if weight.dtype != torch.float32 and weight.dim() == 1]
        vectors += [weight for weight in weights if weight.dtype == torch.float32]
        told += b"".join(bytes(native.describe(Boxes(matrix, LONGEST // 2))) for matrix in matrices)
        told += struct.pack("8Q3i52x", *(vector.data_ptr() for vector in vectors), *(drop.site for drop in three))
    return told.ljust(MOST_LAYERS * len(told) // len(held), b"\0"), held
