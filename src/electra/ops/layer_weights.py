"""The weights of a stack's layers, and where their gradients lie: what every fused `encoder_stack` shares.

Shapes: D width, W = 3·D, F inner width, K layers, N numbers of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """The weights of one layer, in the order in which `model.layers.Layer.weights` gives them, or their gradients."""

    qkv_WD: Tensor
    qkv_bias_W: Tensor
    out_DD: Tensor
    out_bias_D: Tensor
    gamma1_D: Tensor
    beta1_D: Tensor
    up_FD: Tensor
    up_bias_F: Tensor
    down_DF: Tensor
    down_bias_D: Tensor
    gamma2_D: Tensor
    beta2_D: Tensor

    @property
    def sizes(self) -> tuple[int, int]:
        """Width and inner width."""
        ffn, width = self.up_FD.shape
        return width, ffn


def per_layer(weights: Sequence[Tensor]) -> list[LayerWeights]:
    """The weights of each layer, from those of all, one after another."""
    size = len(LayerWeights._fields)
    return [LayerWeights(*weights[first : first + size]) for first in range(0, len(weights), size)]


def matrices_of(matrices_KN: Tensor, width: int, ffn: int) -> list[Tensor]:
    """Rows of N = 4·D² + 2·D·F numbers as the layers' matrices: qkv, out, up and down."""
    shapes = ((3 * width, width), (width, width), (ffn, width), (width, ffn))
    parts = matrices_KN.split([rows * columns for rows, columns in shapes], 1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def biases_of(biases_KN: Tensor, width: int, ffn: int) -> list[Tensor]:
    """Rows of N = 5·D + F numbers as the layers' biases: qkv, out, up and down."""
    return list(biases_KN.split((3 * width, width, ffn, width), 1))


def layers_of(matrices_KN: Tensor, biases_KN: Tensor, norms_KN: Tensor, width: int, ffn: int) -> list[LayerWeights]:
    """Views of three arrays, layer by layer.

    A layer's gradients lie end to end there, as its weights do where they are trained: all layers' then move as three.
    """
    matrices, biases = matrices_of(matrices_KN, width, ffn), biases_of(biases_KN, width, ffn)
    norms = norms_KN.split(width, 1)
    each = zip(*(array.unbind() for array in (*matrices, *biases, *norms)), strict=True)
    return [
        LayerWeights(qkv, qkv_bias, out, out_bias, gamma1, beta1, up, up_bias, down, down_bias, gamma2, beta2)
        for qkv, out, up, down, qkv_bias, out_bias, up_bias, down_bias, gamma1, beta1, gamma2, beta2 in each
    ]
