"""A stack of post-norm transformer layers as one differentiable op, its backward written out.

What the backward needs lies in arrays over all layers, and each buffer is used again as soon as its contents are spent.
Where one layer's weight-gradient products are too small to fill the GPU, all layers' run as one batched product.
Reference: `reference/encoder_stack.py`.

Shapes: B sequences, L length, T = B·L tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from electra.batches.sequences import Spans
from electra.ops.first_order import first_order_only
from electra.ops.layer_weights import LayerWeights, biases_of, layers_of, matrices_of, per_layer
from electra.ops.triton.partial_sums import sum_into
from electra.ops.triton.stack_buffers import (
    Activations,
    PartialSums,
    StackInputs,
    StackKernels,
    make_activations,
    make_gradient_buffers,
    make_partial_sums,
)

BATCHED_ELEMENTS = 2**23
"""Activations of a layer up to which weight gradients of all layers are batched."""


def encoder_stack(
    x_BLD: Tensor,
    layers: Sequence[nn.Module],
    *,
    lengths_B: Tensor | None,
    spans: Spans | None,
    hidden_LL: Tensor | None,
    keys_B: Tensor | None,
    recompute: bool,
    kernels: StackKernels,
    batched_elements: int = BATCHED_ELEMENTS,
) -> Tensor:
    """`kernels` runs the layers; weight gradients are batched up to `batched_elements` activations a layer."""
    assert hidden_LL is None, "the kernels know lengths and documents only"
    layer: Any = layers[0]  # a `model.layers.Layer`; all have the same rates
    # Lengths and keys may be columns of the loader's rows.
    inputs = StackInputs(
        lengths_B=None if lengths_B is None else lengths_B.contiguous().int(),
        spans=None if spans is None else Spans(*(bound_BL.contiguous().int() for bound_BL in spans)),
        keys_B=None if keys_B is None else keys_B.contiguous(),
        sequences=x_BLD.shape[0],
        length=x_BLD.shape[1],
        heads=layer.heads,
        rate=layer.rate,
        attention_rate=layer.attention_rate,
    )
    weights = [weight for module in layers for weight in module.weights()]  # type: ignore[operator]
    saves = torch.is_grad_enabled()  # which `forward` cannot ask: there it is always off
    batched = 0 if recompute else batched_elements
    with torch.cuda.device_of(x_BLD):
        y_BLD: Tensor = _EncoderStack.apply(  # type: ignore[no-untyped-call]
            x_BLD.contiguous(), inputs, kernels, saves, recompute, batched, *weights
        )
    return y_BLD


class _EncoderStack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BLD: Tensor,
        inputs: StackInputs,
        kernels: StackKernels,
        saves: bool,
        recompute: bool,
        batched_elements: int,
        *weights: Tensor,
    ) -> Tensor:
        layers = per_layer(weights)
        count, tokens, width = len(layers), inputs.tokens, x_BLD.shape[2]
        saves = saves and any(ctx.needs_input_grad)
        at_once = count if saves and not recompute else 1  # else each layer overwrites what the one before saved
        saved = _activations(x_BLD, at_once, inputs, layers, kernels)
        x_KTD = x_BLD.new_empty(count + 1 if saves else 2, tokens, width)
        x_KTD[0].copy_(x_BLD.view(tokens, width))
        for first in range(0, count, at_once):
            x_TD, following = x_KTD[first % len(x_KTD)], (first + 1) % len(x_KTD)
            out_KTD = x_KTD[following : following + at_once]
            kernels.forward(x_TD, layers[first : first + at_once], first, inputs, saved, out_KTD)
        if saves:
            ctx.x_KTD, ctx.saved, ctx.weights = x_KTD, None if recompute else saved, weights
            ctx.inputs, ctx.kernels, ctx.batched_elements = inputs, kernels, batched_elements
        return x_KTD[count % len(x_KTD)].view(x_BLD.shape)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.x_KTD is None:
            raise RuntimeError("an encoder stack runs backward once: it overwrites its saved activations")
        inputs, kernels, x_KTD, layers = ctx.inputs, ctx.kernels, ctx.x_KTD, per_layer(ctx.weights)
        count, tokens, width, ffn = len(layers), inputs.tokens, x_KTD.shape[2], len(layers[0].up_FD)
        gradient_TD = gradient_BLD.contiguous().view(tokens, width)
        at_once = count if tokens * width <= ctx.batched_elements else 1
        buffers = make_gradient_buffers(gradient_TD, at_once, inputs, ffn)
        sums = make_partial_sums(gradient_TD, count, inputs, ffn, kernels)
        matrices_KN = gradient_TD.new_empty(count, 4 * width * width + 2 * ffn * width)
        d_qkv_KWD, d_out_KDD, d_up_KFD, d_down_KDF = matrices_of(matrices_KN, width, ffn)
        for first in reversed(range(0, count, at_once)):
            group = slice(first, first + at_once)
            saved = ctx.saved
            if saved is None:  # anew for each layer: the gradient lies in what the layer above saved
                saved = _activations(gradient_TD, at_once, inputs, layers, kernels)
                kernels.forward(x_KTD[first], layers[group], first, inputs, saved, torch.empty_like(x_KTD[group]))
            else:
                saved = saved.part(group)
            gradient_TD = kernels.backward(gradient_TD, layers[group], first, inputs, saved, buffers, sums.part(group))
            _product(buffers.d_down_KTD, saved.act_KTF, d_down_KDF[group])
            _product(buffers.d_preact_KTF, saved.y_KTD, d_up_KFD[group])
            _product(buffers.d_out_KTD, saved.context_KTD, d_out_KDD[group])
            _product(saved.qkv_KTW, x_KTD[group], d_qkv_KWD[group])
            del saved  # before the next layer's take their place
        ctx.x_KTD = ctx.saved = None
        biases_KN, norms_KN = _vector_gradients(sums, layers[0].qkv_bias_W.dtype)
        gradients = layers_of(matrices_KN, biases_KN, norms_KN, width, ffn)
        return gradient_TD.view(gradient_BLD.shape), None, None, None, None, None, *itertools.chain(*gradients)


def _activations(
    like: Tensor, count: int, inputs: StackInputs, layers: list[LayerWeights], kernels: StackKernels
) -> Activations:
    return make_activations(like, count, inputs, len(layers[0].up_FD), act_in_preact=kernels.act_in_preact)


def _product(gradient_KTN: Tensor, x_KTM: Tensor, out_KNM: Tensor) -> None:
    """The weight gradients of some layers."""
    if len(out_KNM) == 1:
        torch.mm(gradient_KTN[0].t(), x_KTM[0], out=out_KNM[0])
    else:
        torch.bmm(gradient_KTN.transpose(1, 2), x_KTM, out=out_KNM)


def _vector_gradients(sums: PartialSums, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of all layers: (K, 5·D + F) biases of qkv, out, up and down, and (K, 4·D) fp32 gammas and betas; one launch."""
    layers, _, ffn = sums.up_KPF.shape
    width, device = sums.norm1_KPN.shape[2] // 3, sums.up_KPF.device
    biases_KN = torch.empty(layers, 5 * width + ffn, dtype=dtype, device=device)
    d_qkv_KW, d_out_KD, d_up_KF, d_down_KD = biases_of(biases_KN, width, ffn)
    norms_KN = torch.empty(layers, 4 * width, dtype=torch.float32, device=device)
    sum_into(
        (sums.norm1_KPN[..., : 2 * width], norms_KN[:, : 2 * width]),
        (sums.norm2_KPN[..., : 2 * width], norms_KN[:, 2 * width :]),
        (sums.norm1_KPN[..., 2 * width :], d_out_KD), (sums.norm2_KPN[..., 2 * width :], d_down_KD),
        (sums.qkv_KBW, d_qkv_KW), (sums.up_KPF, d_up_KF),
    )  # fmt: skip
    return biases_KN, norms_KN
