"""A stack of post-norm layers as one op, its backward written out.

Products write into buffers that all layers share, and into the weight gradients where they lie. Under autograd a layer
would take some sixty calls and allocations. C++ does what stands between the products and, on AMX, some of these too.

Shapes: B sequences, L length, T = B·L tokens, D width, W = 3·D, F inner width, N heads, H head size, X = B·N.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from electra.batches.sequences import Spans
from electra.ops import NORM_EPS
from electra.ops.cpp.dropout import Dropout, dropout_of
from electra.ops.cpp.fold_keys import fold_keys
from electra.ops.cpp.library import call
from electra.ops.cpp.stack_attention import Attended, Attention, AttentionInputs, make_attention
from electra.ops.cpp.weight_gradient import weight_gradient
from electra.ops.first_order import first_order_only
from electra.ops.layer_weights import LayerWeights, layers_of, per_layer
from electra.ops.reference.encoder_stack import CALL_SITES, attention_mask
from electra.ops.reference.encoder_stack import encoder_stack as reference_encoder_stack

Function = TypeVar("Function", bound=Callable[..., Any])
Dropouts = tuple[Dropout, Dropout, Dropout]
"""At the call sites of a layer: attention, its output, the MLP's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackInputs:
    """What all layers of a stack have in common."""

    attention: AttentionInputs
    dropouts: list[Dropouts]
    """Of each layer."""
    recompute: bool


class Saved(NamedTuple):
    """What the backward of one layer reads."""

    context_TD: Tensor
    """This and the next two are an `Attended`."""
    qkv: Tensor
    probabilities_XLL: Tensor
    sum1_TD: Tensor
    """Under the first norm, with each row's mean and inverse standard deviation."""
    stats1_T2: Tensor
    y_TD: Tensor
    """Output of the first norm."""
    preact_TF: Tensor
    """Input of the GELU without its bias."""
    act_TF: Tensor
    sum2_TD: Tensor
    stats2_T2: Tensor


def _without_autocast(function: Function) -> Function:
    """It would give products another type than the one that the C++ reads."""
    decorated: Function = torch.autocast("cpu", enabled=False)(function)
    return decorated


@_without_autocast
def encoder_stack(
    x_BLD: Tensor,
    layers: Sequence[nn.Module],
    *,
    lengths_B: Tensor | None,
    spans: Spans | None,
    hidden_LL: Tensor | None,
    keys_B: Tensor | None,
    recompute: bool,
    rotation_2LH: Tensor | None = None,
) -> Tensor:
    first: Any = layers[0]  # a `model.layers.Layer`; all have the same rates
    x_BLD = x_BLD.to(first.weights()[0].dtype)  # it has another under autocast
    if rotation_2LH is not None or not torch.is_grad_enabled():  # what this gains it gains in training
        return reference_encoder_stack(
            x_BLD,
            layers,
            lengths_B=lengths_B,
            spans=spans,
            hidden_LL=hidden_LL,
            keys_B=keys_B,
            recompute=recompute,
            rotation_2LH=rotation_2LH,
        )
    sequences, length, width = x_BLD.shape

    def dropout_at(call_site: int, rate: float, columns: int) -> Dropout:
        return dropout_of(None if keys_B is None else fold_keys(keys_B, call_site), rate, columns)

    inputs = StackInputs(
        attention=AttentionInputs(
            mask=_contiguous_mask(attention_mask(x_BLD, lengths_B, spans, hidden_LL), x_BLD.dtype, sequences, length),
            sequences=sequences,
            length=length,
            heads=first.heads,
            head_size=width // first.heads,
        ),
        dropouts=[
            (
                dropout_at(call_site, first.attention_rate, length),
                dropout_at(call_site + 1, first.rate, width),
                dropout_at(call_site + 2, first.rate, width),
            )
            for call_site in range(0, CALL_SITES * len(layers), CALL_SITES)
        ],
        recompute=recompute,
    )
    weights = [weight.contiguous() for module in layers for weight in module.weights()]  # type: ignore[operator]
    for layer in per_layer(weights):
        norms = (layer.gamma1_D, layer.beta1_D, layer.gamma2_D, layer.beta2_D)
        assert all(norm.dtype == torch.float32 for norm in norms), "the C++ reads the norm's weights as fp32"
        others = (layer.qkv_bias_W, layer.out_bias_D, layer.up_FD, layer.up_bias_F, layer.down_bias_D)
        assert all(other.dtype == x_BLD.dtype for other in others), "the C++ reads all other weights as the states"
    y_BLD: Tensor = _EncoderStack.apply(x_BLD.contiguous(), inputs, *weights)  # type: ignore[no-untyped-call]
    return y_BLD


def _contiguous_mask(
    mask_B1LL: Tensor | None, dtype: torch.dtype, sequences: int, length: int
) -> tuple[Tensor | None, int, int]:
    """The mask with the strides of its sequences and rows: 0 where there is one for all."""
    if mask_B1LL is None:
        return None, 0, 0
    mask = mask_B1LL.to(dtype).expand(-1, -1, -1, length).contiguous()
    sequence_stride, _, row_stride, _ = mask.expand(sequences, 1, length, length).stride()
    return mask, sequence_stride, row_stride


class _EncoderStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BLD: Tensor, inputs: StackInputs, *weights: Tensor) -> Tensor:
        x_TD, layers, read = x_BLD.flatten(0, 1), per_layer(weights), []
        buffers = ForwardBuffers.empty(x_TD, inputs)
        ctx.inputs, ctx.lowest = inputs, _lowest_trained(ctx.needs_input_grad)
        for number, layer in enumerate(layers):
            y_TD, saved = forward_layer(x_TD, layer, number, inputs, buffers)
            if number >= ctx.lowest:
                read += [x_TD] if inputs.recompute else [x_TD, *saved]
            x_TD = y_TD
        ctx.count = len(weights)
        ctx.save_for_backward(*weights, *read)
        return x_TD.view(x_BLD.shape)

    @staticmethod
    @first_order_only
    @_without_autocast
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        inputs: StackInputs = ctx.inputs
        saved_tensors = ctx.saved_tensors  # once: hooks on saved tensors may refuse a second time
        layers, read = per_layer(saved_tensors[: ctx.count]), list(saved_tensors[ctx.count :])
        size = 1 if inputs.recompute else 1 + len(Saved._fields)
        gradient_TD = gradient_BLD.contiguous().flatten(0, 1)
        gradients = _empty_gradients(layers)
        again = ForwardBuffers.empty(gradient_TD, inputs)
        buffers = BackwardBuffers.empty(gradient_TD, layers[0])
        for number in reversed(range(ctx.lowest, len(layers))):
            x_TD, *tensors = read[(number - ctx.lowest) * size :][:size]
            layer = layers[number]
            saved = Saved(*tensors) if tensors else forward_layer(x_TD, layer, number, inputs, again)[1]
            arguments = (layer, number, inputs, saved, buffers, again.attention, gradients[number])
            gradient_TD = backward_layer(gradient_TD, x_TD, *arguments)
            del saved, arguments  # before the next layer's take their place
        d_x_BLD = gradient_TD.view(gradient_BLD.shape) if ctx.needs_input_grad[0] else None
        return d_x_BLD, None, *itertools.chain(*gradients)


def _lowest_trained(needed: Sequence[bool]) -> int:
    """The lowest layer that the backward goes through, by which arguments of `forward` need a gradient."""
    x, _, *weights = needed
    first = 0 if x else (*weights, True).index(True)
    return first // len(LayerWeights._fields)


# --- forward ---


class ForwardBuffers(NamedTuple):
    """What the next layer overwrites."""

    attention: Attention
    product_TD: Tensor

    @classmethod
    def empty(cls, like_TD: Tensor, inputs: StackInputs) -> ForwardBuffers:
        return cls(make_attention(like_TD, inputs.attention), torch.empty_like(like_TD))


def forward_layer(
    x_TD: Tensor, layer: LayerWeights, number: int, inputs: StackInputs, buffers: ForwardBuffers
) -> tuple[Tensor, Saved]:
    """A layer's output, and what its backward reads."""
    at_attention, at_context, at_mlp = inputs.dropouts[number]
    attended = buffers.attention.forward(x_TD, layer.qkv_WD, layer.qkv_bias_W, at_attention)
    torch.mm(attended.context_TD, layer.out_DD.t(), out=buffers.product_TD)
    norm1 = (layer.out_bias_D, layer.gamma1_D, layer.beta1_D)
    y_TD, sum1_TD, stats1_T2 = _norm(x_TD, buffers.product_TD, norm1, at_context, inputs)
    preact_TF = torch.mm(y_TD, layer.up_FD.t())
    act_TF = torch.empty_like(preact_TF)
    call("bias_gelu", x_TD.dtype, preact_TF, layer.up_bias_F, act_TF, *preact_TF.shape)
    torch.mm(act_TF, layer.down_DF.t(), out=buffers.product_TD)
    norm2 = (layer.down_bias_D, layer.gamma2_D, layer.beta2_D)
    z_TD, sum2_TD, stats2_T2 = _norm(y_TD, buffers.product_TD, norm2, at_mlp, inputs)
    return z_TD, Saved(*attended, sum1_TD, stats1_T2, y_TD, preact_TF, act_TF, sum2_TD, stats2_T2)


def _norm(
    x_TD: Tensor, product_TD: Tensor, weights: tuple[Tensor, Tensor, Tensor], dropout: Dropout, inputs: StackInputs
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(x + dropout(product + bias)), the sum under the norm, and its rows' means and inverse deviations."""
    y_TD, sum_TD = torch.empty_like(x_TD), torch.empty_like(x_TD)
    stats_T2 = x_TD.new_empty(len(x_TD), 2, dtype=torch.float32)
    arguments = (x_TD, product_TD, *weights, y_TD, sum_TD, stats_T2, *dropout, NORM_EPS)
    call("add_dropout_norm", x_TD.dtype, *arguments, inputs.attention.sequences, inputs.attention.length, x_TD.shape[1])
    return y_TD, sum_TD, stats_T2


# --- backward ---


class BackwardBuffers(NamedTuple):
    """Gradients that the next layer overwrites."""

    d_x_TD: Tensor
    """Of the layer's input."""
    d_y_TD: Tensor
    """Of the first norm's output."""
    d_product_TD: Tensor
    """Under a norm."""
    d_act_TF: Tensor
    d_preact_TF: Tensor

    @classmethod
    def empty(cls, like_TD: Tensor, layer: LayerWeights) -> BackwardBuffers:
        (width, ffn), tokens, new = layer.sizes, len(like_TD), like_TD.new_empty
        return cls(new(tokens, width), new(tokens, width), new(tokens, width), new(tokens, ffn), new(tokens, ffn))


def backward_layer(
    gradient_TD: Tensor,
    x_TD: Tensor,
    layer: LayerWeights,
    number: int,
    inputs: StackInputs,
    saved: Saved,
    buffers: BackwardBuffers,
    attention: Attention,
    gradients: LayerWeights,
) -> Tensor:
    """The gradient of a layer's input, in `buffers`; fills the weights' `gradients`."""
    at_attention, at_context, at_mlp = inputs.dropouts[number]
    d_x_TD, d_y_TD, attended = buffers.d_x_TD, buffers.d_y_TD, Attended(*saved[: len(Attended._fields)])
    of_norm = (gradients.down_bias_D, gradients.gamma2_D, gradients.beta2_D)
    under_norm = (saved.sum2_TD, saved.stats2_T2, layer.gamma2_D)
    d_product_TD = _norm_backward(gradient_TD, under_norm, d_y_TD, of_norm, at_mlp, inputs, buffers)
    weight_gradient(d_product_TD, saved.act_TF, out_NM=gradients.down_DF)
    torch.mm(d_product_TD, layer.down_DF, out=buffers.d_act_TF)
    arguments = (buffers.d_act_TF, saved.preact_TF, layer.up_bias_F, buffers.d_preact_TF, gradients.up_bias_F)
    call("bias_gelu_backward", x_TD.dtype, *arguments, *saved.preact_TF.shape)
    weight_gradient(buffers.d_preact_TF, saved.y_TD, out_NM=gradients.up_FD)
    d_y_TD.addmm_(buffers.d_preact_TF, layer.up_FD)
    of_norm = (gradients.out_bias_D, gradients.gamma1_D, gradients.beta1_D)
    under_norm = (saved.sum1_TD, saved.stats1_T2, layer.gamma1_D)
    d_product_TD = _norm_backward(d_y_TD, under_norm, d_x_TD, of_norm, at_context, inputs, buffers)
    weight_gradient(d_product_TD, saved.context_TD, out_NM=gradients.out_DD)
    d_context_TD = torch.mm(d_product_TD, layer.out_DD, out=d_y_TD)
    to_attention = (d_context_TD, attended, layer.qkv_bias_W, at_attention)
    d_qkv_TW = attention.backward(*to_attention, d_bias_W=gradients.qkv_bias_W)
    weight_gradient(d_qkv_TW, x_TD, out_NM=gradients.qkv_WD)
    return d_x_TD.addmm_(d_qkv_TW, layer.qkv_WD)


def _norm_backward(
    gradient_TD: Tensor,
    under_norm: tuple[Tensor, Tensor, Tensor],
    d_x_TD: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    dropout: Dropout,
    inputs: StackInputs,
    buffers: BackwardBuffers,
) -> Tensor:
    """The gradient of the product under a norm; fills that of the residual and of bias, gamma and beta."""
    d_product_TD = d_x_TD if dropout.keys_B is None else buffers.d_product_TD
    arguments = (gradient_TD, *under_norm, d_x_TD, d_product_TD, *gradients, *dropout)
    call(
        "add_dropout_norm_backward",
        gradient_TD.dtype,
        *arguments,
        inputs.attention.sequences,
        inputs.attention.length,
        d_x_TD.shape[1],
    )
    return d_product_TD


def _empty_gradients(layers: list[LayerWeights]) -> list[LayerWeights]:
    first, (width, ffn) = layers[0], layers[0].sizes
    matrices_KN = first.up_FD.new_empty(len(layers), 4 * width * width + 2 * ffn * width)
    biases_KN = first.up_bias_F.new_empty(len(layers), 5 * width + ffn)
    norms_KN = first.gamma1_D.new_empty(len(layers), 4 * width)
    return layers_of(matrices_KN, biases_KN, norms_KN, width, ffn)
