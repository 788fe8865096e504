"""Encoder layers of width 256, in bf16: forward in one kernel, backward in one from attention to attention.

A sequence of at most 128 tokens stays in one multiprocessor's shared memory, and weights stream past it by TMA.
Forward, a block runs a whole sequence through all layers; what any backward reads is written out. Backward, a block
runs a sequence from the gradient of one layer's q, k and v to that of the context of the layer below. Attention's own
backward is a kernel between two of these: its tiles do not fit beside the others.
The sources are `encoder_width256_forward.cu` and `encoder_width256_backward.cu`.
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
from electra.ops.cuda.attention import attention_backward
from electra.ops.cuda.compiler import MAX_LENGTH, TILE_BYTES, Kernel
from electra.ops.cuda.driver import TmaTiles, aligned, launch
from electra.ops.cuda.encoder_width64 import dropout_arguments
from electra.ops.layer_weights import LayerWeights
from electra.ops.triton.stack_buffers import Activations, GradientBuffers, PartialSums, StackInputs

WIDTH, HEADS, FFN = 256, 4, 1024
MAX_LAYERS = 12
"""That the kernel's arguments have space for."""
FORWARD = Kernel(
    "encoder_width256_forward", "encoder_width256_forward", 14 * TILE_BYTES + 192 + 512 + 2048,
    threads=384, blocks_per_multiprocessor=1,
)  # fmt: skip

BACKWARD = Kernel(
    "encoder_width256_backward", "encoder_width256_backward", 14 * TILE_BYTES + 256 + 512 + 2048,
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


def backward(
    gradient_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations,
    buffers: GradientBuffers, sums: PartialSums,
) -> Tensor:  # fmt: skip
    """A `stack_buffers.BackwardLayers`."""
    d_context = torch.empty_like(gradient_TD)
    gradient, above = gradient_TD, None
    for place in reversed(range(len(layers))):
        weights, number, activations = layers[place], first + place, saved.part(place)
        # The layer above left the gradient of its residual, and attention that of q, k and v.
        _backward_to_context(
            gradient, above, weights, number, inputs, activations, buffers.part(place), sums.part(place), d_context
        )
        attention_backward(
            activations.qkv_KTW, d_context, activations.context_KTD, activations.lse_KTN, inputs.lengths_B, None,
            inputs.dropouts(number)[0], length=inputs.length, heads=HEADS, sums=sums.qkv_KBW[place],
        )  # fmt: skip
        gradient, above = activations.sum1_KTD, (activations.qkv_KTW, weights.qkv_WD)
    assert above is not None
    return gradient.addmm_(*above)


def norm_rows(sequences: int, tokens: int, width: int) -> int:
    """How many rows of partial sums `backward` writes for a norm: one for each half of a sequence."""
    return 2 * sequences


def gelu_rows(sequences: int, tokens: int, ffn: int) -> int:
    """How many it writes for the bias before the GELU."""
    return 4 * sequences


def _backward_to_context(
    gradient_TD: Tensor, above: tuple[Tensor, Tensor] | None, weights: LayerWeights, number: int, inputs: StackInputs,
    saved: Activations, buffers: GradientBuffers, sums: PartialSums, d_context: Tensor,
) -> None:  # fmt: skip
    """Backward of a layer as far as attention's context, from the gradient of its output.

    With a layer `above`, that is `gradient_TD` plus the product of its d_qkv and its weight. Fills `buffers`, `sums` of
    the norms and of `up`, and `d_context`; `sum1_KTD` gets the gradient that bypasses attention.
    """
    d_qkv_TW, qkv_WD = (saved.qkv_KTW, weights.qkv_WD) if above is None else above
    matrices = [aligned(weight) for weight in (qkv_WD, weights.down_DF, weights.up_FD, weights.out_DD)]
    read = (gradient_TD, d_qkv_TW, saved.sum2_KTD, saved.sum1_KTD, saved.preact_KTF)
    written = (*buffers, d_context)
    _, output, mlp = inputs.dropouts(number)
    launch(
        BACKWARD, inputs.sequences, *(TmaTiles(matrix, MAX_LENGTH // 2) for matrix in matrices),
        *(_tiles(array, inputs) for array in (*read, *written)), saved.sum1_KTD,
        saved.mean2_KT, saved.rstd2_KT, weights.gamma2_D, saved.mean1_KT, saved.rstd1_KT, weights.gamma1_D,
        sums.norm1_KPN, sums.norm2_KPN, sums.up_KPF, output.keys_B, above is not None, inputs.length,
        output.address, mlp.address, output.threshold, output.scale,
    )  # fmt: skip


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
