"""Encoder layers of width 64 in one kernel forward and one backward, in bf16: a block runs a sequence through all.

Layers this small leave the GPU idle between launches, and a sequence's activations fit in one multiprocessor's shared
memory. Weight gradients are left to products over all sequences, for which the kernels write activations and gradients
out. The sources are `encoder_width64_forward.cu` and `encoder_width64_backward.cu` (TMA, wgmma).
Reference: `model.layers.Layer` over `reference/`.

Shapes: B sequences, T = B·L tokens, D width, F inner width, K layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.cuda.compiler import HEAD_SIZE, MAX_LENGTH, TILE_BYTES, Kernel
from electra.ops.cuda.driver import Argument, aligned, launch
from electra.ops.layer_weights import LayerWeights
from electra.ops.triton.hash import Dropout
from electra.ops.triton.stack_buffers import Activations, GradientBuffers, PartialSums, StackInputs

FFN = 256
MAX_LAYERS = 24
"""That the kernels' arguments have space for."""
_LAYER = "12Q4i"  # addresses of weights, call sites
_BLOCK = {"threads": 512, "blocks_per_multiprocessor": 1}
FORWARD = Kernel(
    "encoder_width64_forward", "encoder_width64_forward",
    12 * TILE_BYTES + 256 + (2 * 832 + 3 * 4 * MAX_LENGTH) * 4, **_BLOCK,
)  # fmt: skip
BACKWARD = Kernel(
    "encoder_width64_backward", "encoder_width64_backward",
    12 * TILE_BYTES + MAX_LENGTH * 60 + 256 + (8 * (FFN + 2 * 192) + 5 * MAX_LENGTH + 2 * HEAD_SIZE) * 4, **_BLOCK,
)  # fmt: skip


def forward(
    x_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations, out_KTD: Tensor,
    *, layers_per_launch: int = MAX_LAYERS,
) -> None:  # fmt: skip
    """A `stack_buffers.ForwardLayers`; `act_KTF` is left for the backward."""
    for group in _groups(len(layers), layers_per_launch):
        structure, held, arguments = _arguments(layers[group], first + group.start, inputs)
        *head, act, lse, sum1, mean1, rstd1, sum2, mean2, rstd2 = saved.part(group)
        qkv, context, y, preact = head
        launch(
            FORWARD, inputs.sequences, structure, len(held), x_TD,
            qkv, context, lse, sum1, mean1, rstd1, y, preact, sum2, mean2, rstd2, out_KTD[group],
            *arguments, NORM_EPS, *_uses_dropout(inputs),
        )  # fmt: skip
        x_TD = out_KTD[group][-1]


def backward(
    gradient_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations,
    buffers: GradientBuffers, sums: PartialSums, *, layers_per_launch: int = MAX_LAYERS,
) -> Tensor:  # fmt: skip
    """A `stack_buffers.BackwardLayers`; `preact_KTF` is overwritten with the GELU's output."""
    for group in reversed(_groups(len(layers), layers_per_launch)):
        structure, held, arguments = _arguments(layers[group], first + group.start, inputs)
        qkv, context, _, preact, _, lse, sum1, mean1, rstd1, sum2, mean2, rstd2 = saved.part(group)
        d_x_TD = torch.empty_like(gradient_TD)
        launch(
            BACKWARD, inputs.sequences, structure, len(held), gradient_TD,
            qkv, context, lse, sum1, mean1, rstd1, preact, sum2, mean2, rstd2,
            *buffers.part(group), d_x_TD, *sums.part(group), *arguments, *_uses_dropout(inputs),
        )  # fmt: skip
        gradient_TD = d_x_TD
    return gradient_TD


def partial_rows(sequences: int, tokens: int, columns: int) -> int:
    """How many rows of partial sums `backward` writes: one a sequence."""
    return sequences


def _groups(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _arguments(
    layers: Sequence[LayerWeights], first: int, inputs: StackInputs
) -> tuple[bytes, list[list[Tensor]], tuple[Argument, ...]]:
    """The structure of all layers, the weights it points to, and what both kernels take after their arrays."""
    held = [[aligned(weight) if weight.dim() == 2 else weight for weight in layer] for layer in layers]
    structure = b"".join(
        struct.pack(
            _LAYER,
            *(weight.data_ptr() for weight in weights),
            *(dropout.address for dropout in inputs.dropouts(first + place)),
            0,
        )
        for place, weights in enumerate(held)
    )
    attention, output, _ = inputs.dropouts(first)
    arguments = (inputs.lengths_B, *dropout_arguments(attention, output, inputs))
    return structure.ljust(MAX_LAYERS * struct.calcsize(_LAYER), b"\0"), held, arguments


def dropout_arguments(attention: Dropout, output: Dropout, inputs: StackInputs) -> tuple[Argument, ...]:
    """Keys, sizes, the scale of scores, and threshold and scale of dropout in attention and elsewhere."""
    keys = attention.keys_B if attention.keys_B is not None else output.keys_B
    rates = (attention.threshold, attention.scale, output.threshold, output.scale)
    return keys, inputs.sequences, inputs.length, HEAD_SIZE**-0.5, *rates


def _uses_dropout(inputs: StackInputs) -> tuple[bool, bool]:
    attention, output, _ = inputs.dropouts(0)
    return attention.keys_B is not None, output.keys_B is not None
