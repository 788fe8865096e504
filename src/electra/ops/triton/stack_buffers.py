"""What an encoder stack is run with: inputs, saved activations, gradient buffers, partial sums and kernels.

Shapes: B sequences, L length, T = B·L tokens, D width, W = 3·D, N heads, F inner width, K layers, P rows of partial
sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops.layer_weights import LayerWeights
from electra.ops.triton.hash import Dropout, dropout_at

CALL_SITES = 3
"""Of dropout in a layer: attention weights, attention output, MLP output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackInputs:
    """What all layers of a stack have in common."""

    lengths_B: Tensor | None
    spans: Spans | None
    keys_B: Tensor | None
    sequences: int
    length: int
    heads: int
    rate: float
    attention_rate: float

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    def dropouts(self, layer: int) -> tuple[Dropout, Dropout, Dropout]:
        """Dropout at the three call sites of a layer."""
        first = CALL_SITES * layer
        return (
            dropout_at(self.keys_B, self.attention_rate, first),
            dropout_at(self.keys_B, self.rate, first + 1),
            dropout_at(self.keys_B, self.rate, first + 2),
        )


class Activations(NamedTuple):
    """Saved activations of K layers; one layer's alone have no first dimension."""

    qkv_KTW: Tensor
    """The backward overwrites them with their gradients."""
    context_KTD: Tensor
    """Attention's output before its projection."""
    y_KTD: Tensor
    """Output of the first norm."""
    preact_KTF: Tensor
    """Input of the GELU."""
    act_KTF: Tensor
    """Its output; `preact_KTF` itself where the backward kernel overwrites that with it."""
    lse_KTN: Tensor
    """Attention's log-sum-exp, fp32, as the kernel that reads it writes it: unused by some, base 2 in others."""
    sum1_KTD: Tensor
    """Under the first norm; the backward overwrites both sums."""
    mean1_KT: Tensor
    rstd1_KT: Tensor
    sum2_KTD: Tensor
    mean2_KT: Tensor
    rstd2_KT: Tensor

    def part(self, layers: slice | int) -> Activations:
        return Activations(*(array[layers] for array in self))


def make_activations(like: Tensor, layers: int, inputs: StackInputs, ffn: int, *, act_in_preact: bool) -> Activations:
    """Buffers for so many layers, of the width and dtype of `like`."""
    width, tokens = like.shape[-1], inputs.tokens

    def buffer(columns: int) -> Tensor:
        return torch.empty(layers, tokens, columns, dtype=like.dtype, device=like.device)

    preact = buffer(ffn)
    lse = torch.empty(layers, tokens * inputs.heads, dtype=torch.float32, device=like.device)
    mean1, rstd1, mean2, rstd2 = torch.empty(4, layers, tokens, dtype=torch.float32, device=like.device).unbind()
    return Activations(
        buffer(3 * width), buffer(width), buffer(width), preact, preact if act_in_preact else buffer(ffn), lse,
        buffer(width), mean1, rstd1, buffer(width), mean2, rstd2,
    )  # fmt: skip


class GradientBuffers(NamedTuple):
    """Gradients that the products of weight gradients read, of K layers."""

    d_down_KTD: Tensor
    """Of the MLP's output, before its dropout."""
    d_preact_KTF: Tensor
    d_out_KTD: Tensor
    """Of attention's projected output, before its dropout."""

    def part(self, layers: slice | int) -> GradientBuffers:
        return GradientBuffers(*(array[layers] for array in self))


class PartialSums(NamedTuple):
    """fp32 rows that add up to the gradients of vectors, of K layers."""

    norm1_KPN: Tensor
    """N = 3·D: gamma, beta, and the bias before the norm."""
    norm2_KPN: Tensor
    up_KPF: Tensor
    qkv_KBW: Tensor

    def part(self, layers: slice | int) -> PartialSums:
        return PartialSums(*(array[layers] for array in self))


ForwardLayers = Callable[[Tensor, list[LayerWeights], int, StackInputs, Activations, Tensor], None]
"""(x_TD, layers, number of the first, inputs, saved, out_KTD): fills `saved` and each layer's output in `out_KTD`."""
BackwardLayers = Callable[
    [Tensor, list[LayerWeights], int, StackInputs, Activations, GradientBuffers, PartialSums], Tensor
]
"""(gradient_TD, layers, number of the first, inputs, saved, buffers, sums): the gradient of the first layer's input.

Fills `buffers` and `sums`; `saved` then has the gradients of q, k and v in their place, and `act_KTF`.
"""
PartialRows = Callable[[int, int, int], int]
"""(sequences, tokens, columns): how many rows of partial sums the backward writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackKernels:
    """What runs the layers of one shape; `ops.dispatch` makes it."""

    forward: ForwardLayers
    backward: BackwardLayers
    norm_rows: PartialRows
    gelu_rows: PartialRows
    act_in_preact: bool = False
    """Whether the backward leaves the GELU's output in the place of its input, so that it needs no buffer."""


def make_gradient_buffers(like: Tensor, layers: int, inputs: StackInputs, ffn: int) -> GradientBuffers:
    width = like.shape[-1]
    return GradientBuffers(*(like.new_empty(layers, inputs.tokens, columns) for columns in (width, ffn, width)))


def make_partial_sums(like: Tensor, layers: int, inputs: StackInputs, ffn: int, kernels: StackKernels) -> PartialSums:
    width = like.shape[-1]
    norm = kernels.norm_rows(inputs.sequences, inputs.tokens, width)
    gelu = kernels.gelu_rows(inputs.sequences, inputs.tokens, ffn)
    shapes = ((norm, 3 * width), (norm, 3 * width), (gelu, ffn), (inputs.sequences, 3 * width))
    return PartialSums(*(torch.empty(layers, *shape, dtype=torch.float32, device=like.device) for shape in shapes))
