"""Encoder layers of width 256, forward in one kernel, in bf16: a block runs a whole sequence through all of them.

A sequence of at most 128 tokens stays in one multiprocessor's shared memory, and weights stream past it by TMA. What
the backward of single layers reads is written out. The source is `encoder_width256_forward.cu`.
Reference: `model.layers.Layer` over `reference/`.

Shapes: B sequences, T = B·L tokens, D width, F inner width, K layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.cuda import driver
from electra.ops.cuda.compiler import MAX_LENGTH, TILE_BYTES, Kernel
from electra.ops.cuda.driver import TmaTiles, aligned, launch
from electra.ops.cuda.encoder_width64 import dropout_arguments
from electra.ops.triton.stack_buffers import Activations, LayerWeights, StackInputs

WIDTH, HEADS, FFN = 256, 4, 1024
MAX_LAYERS = 12
"""That the kernel's arguments have space for."""
FORWARD = Kernel(
    "encoder_width256_forward", "encoder_width256_forward", 14 * TILE_BYTES + 192 + 512 + 2048,
    threads=384, blocks_per_multiprocessor=1,
)  # fmt: skip


def forward(
    x_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations, out_KTD: Tensor,
    *, layers_per_launch: int = MAX_LAYERS,
) -> None:  # fmt: skip
    """A `stack_buffers.ForwardLayers`."""
    for start in range(0, len(layers), layers_per_launch):
        group = slice(start, start + layers_per_launch)
        structure, held = _structure(layers[group], first + start, inputs)
        qkv, context, y, preact, act, lse, sum1, mean1, rstd1, sum2, mean2, rstd2 = saved.part(group)
        attention, output, _ = inputs.dropouts(first + start)
        launch(
            FORWARD, inputs.sequences, structure, len(held), _tiles(x_TD, inputs),
            _tiles(qkv, inputs), _tiles(context, inputs), sum1, y, preact, act, sum2, out_KTD[group], lse,
            mean1, rstd1, mean2, rstd2, inputs.lengths_B, *dropout_arguments(attention, output, inputs), NORM_EPS,
            attention.keys_B is not None, output.keys_B is not None,
        )  # fmt: skip
        x_TD = out_KTD[group][-1]


def _tiles(array: Tensor, inputs: StackInputs) -> TmaTiles:
    """What a warpgroup loads and stores of one array, or of one over layers."""
    return TmaTiles(array.view(-1, array.shape[-1]), MAX_LENGTH // 2, inputs.length)


def _structure(layers: Sequence[LayerWeights], first: int, inputs: StackInputs) -> tuple[bytes, list[list[Tensor]]]:
    """The structure of all layers, and the weights whose addresses are in it."""
    held = [[aligned(weight) if weight.dim() == 2 else weight for weight in layer] for layer in layers]
    structure = b""
    for place, weights in enumerate(held):
        matrices = [weight for weight in weights if weight.dim() == 2]
        vectors = [weight for weight in weights if weight.dtype != torch.float32 and weight.dim() == 1]
        vectors += [weight for weight in weights if weight.dtype == torch.float32]
        structure += b"".join(bytes(driver.tensor_map(TmaTiles(matrix, MAX_LENGTH // 2))) for matrix in matrices)
        call_sites = (dropout.address for dropout in inputs.dropouts(first + place))
        structure += struct.pack("8Q3i52x", *(vector.data_ptr() for vector in vectors), *call_sites)
    return structure.ljust(MAX_LAYERS * len(structure) // len(held), b"\0"), held
