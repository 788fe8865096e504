"""Post-norm transformer layers one after another, as library products with fused kernels between them.

Reference: `model.layers.Layer` over `reference/`.

Shapes: T tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from electra.ops.layer_weights import LayerWeights
from electra.ops.triton.add_dropout_norm import add_dropout_norm_backward, add_dropout_norm_forward
from electra.ops.triton.stack_buffers import Activations, GradientBuffers, PartialSums, StackInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKernels:
    """The kernels between the products of a layer, with the signatures of those in `attention` and `gelu_mlp`."""

    attention_forward: Callable[..., None]
    attention_backward: Callable[..., None]
    linear_gelu_forward: Callable[..., None]
    linear_gelu_backward: Callable[..., None]

    def forward(
        self, x_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations,
        out_KTD: Tensor,
    ) -> None:  # fmt: skip
        """Run the layers: a `stack_buffers.ForwardLayers`."""
        for place, weights in enumerate(layers):
            self._forward(x_TD, weights, first + place, inputs, saved.part(place), out_KTD[place])
            x_TD = out_KTD[place]

    def backward(
        self, gradient_TD: Tensor, layers: list[LayerWeights], first: int, inputs: StackInputs, saved: Activations,
        buffers: GradientBuffers, sums: PartialSums,
    ) -> Tensor:  # fmt: skip
        """The gradient of the first layer's input: a `stack_buffers.BackwardLayers`."""
        for place, weights in reversed(list(enumerate(layers))):
            parts = saved.part(place), buffers.part(place), sums.part(place)
            gradient_TD = self._backward(gradient_TD, weights, first + place, inputs, *parts)
        return gradient_TD

    def _forward(
        self, x_TD: Tensor, weights: LayerWeights, number: int, inputs: StackInputs, saved: Activations, out_TD: Tensor
    ) -> None:
        qkv, context, y, preact, act, lse, sum1, mean1, rstd1, sum2, mean2, rstd2 = saved
        length, heads, (dropout0, dropout1, dropout2) = inputs.length, inputs.heads, inputs.dropouts(number)
        torch.addmm(weights.qkv_bias_W, x_TD, weights.qkv_WD.t(), out=qkv)
        self.attention_forward(
            qkv, inputs.lengths_B, inputs.spans, dropout0, length=length, heads=heads, out=context, lse=lse
        )
        torch.addmm(weights.out_bias_D, context, weights.out_DD.t(), out=sum1)
        add_dropout_norm_forward(
            sum1, x_TD, weights.gamma1_D, weights.beta1_D, dropout1, length=length, out=y, mean=mean1, rstd=rstd1
        )
        self.linear_gelu_forward(y, weights.up_FD, weights.up_bias_F, preact=preact, act=act)
        torch.addmm(weights.down_bias_D, act, weights.down_DF.t(), out=sum2)
        add_dropout_norm_forward(
            sum2, y, weights.gamma2_D, weights.beta2_D, dropout2, length=length, out=out_TD, mean=mean2, rstd=rstd2
        )

    def _backward(
        self, gradient_TD: Tensor, weights: LayerWeights, number: int, inputs: StackInputs, saved: Activations,
        buffers: GradientBuffers, sums: PartialSums,
    ) -> Tensor:  # fmt: skip
        qkv, context, _, preact, _, lse, sum1, mean1, rstd1, sum2, mean2, rstd2 = saved
        length, heads, (dropout0, dropout1, dropout2) = inputs.length, inputs.heads, inputs.dropouts(number)
        d_down, d_preact, d_out = buffers
        add_dropout_norm_backward(
            gradient_TD, sum2, mean2, rstd2, weights.gamma2_D, dropout2,
            length=length, d_branch=d_down, sums=sums.norm2_KPN,
        )  # fmt: skip
        self.linear_gelu_backward(d_down, weights.down_DF, preact, d_preact=d_preact, sums=sums.up_KPF)
        sum2.addmm_(d_preact, weights.up_FD)
        add_dropout_norm_backward(
            sum2, sum1, mean1, rstd1, weights.gamma1_D, dropout1, length=length, d_branch=d_out, sums=sums.norm1_KPN
        )
        self.attention_backward(
            qkv, d_out @ weights.out_DD, context, lse, inputs.lengths_B, inputs.spans, dropout0,
            length=length, heads=heads, sums=sums.qkv_KBW,
        )  # fmt: skip
        return sum1.addmm_(qkv, weights.qkv_WD)
