"""A stack of post-norm transformer layers as one differentiable step, written out forwards and backwards.

Between matrix products stand fused kernels, and each buffer is used again as soon as what it holds is spent. What the
way back needs lies in arrays over all layers. Narrow layers, whose products are too small to fill the chip, get their
weights' gradients at the end, one batched product for all layers. The plain twin is `model.layers.Layer`.

Shapes: B texts, L length, T = B·L tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.kernels import gelu as gelus
from electra.kernels import narrow
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.hashing import Drop, drop_at

TOGETHER = 2**22
"""Products of stacks of this many activations do not fill the chip: those of all layers are made at once."""


class Block(NamedTuple):
    """The weights of one layer, in the order in which the stack takes them."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    gamma1: Tensor
    beta1: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    gamma2: Tensor
    beta2: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the stack is told beside tensors."""

    heads: int
    rate: float
    attention_rate: float
    eps: float
    sites: int
    """Places of dropout a layer: attention, its output, the feed-forward output."""


class _Kept(NamedTuple):
    """What the way back overwrites of one layer, and what it reads of its rows."""

    level: Tensor | None
    sum1: Tensor
    mean1: Tensor
    rstd1: Tensor
    sum2: Tensor
    mean2: Tensor
    rstd2: Tensor


class _Arrays(NamedTuple):
    """What the products of the way back read, over all layers."""

    x_KTD: Tensor
    qkv_KTW: Tensor
    mixed_KTD: Tensor
    y_KTD: Tensor
    inner_KTF: Tensor
    active_KTF: Tensor
    """The GELU's output; `inner_KTF` itself where the way back puts it there."""


@torch.compiler.disable
def run_stack(
    x_BLD: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None, plan: Plan, weights: Sequence[Tensor]
) -> Tensor:
    """The last layer's output; `weights` are the layers' blocks, one after another."""
    # Lengths and keys are columns of the batch's rows otherwise.
    lengths_B = None if lengths_B is None else lengths_B.contiguous()
    keys_B = None if keys_B is None else keys_B.contiguous()
    keeps = torch.is_grad_enabled()  # which `forward` cannot ask: there it is always off
    y_BLD: Tensor = _Stack.apply(  # type: ignore[no-untyped-call]
        x_BLD.contiguous(), lengths_B, keys_B, plan, keeps, *weights
    )
    return y_BLD


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BLD: Tensor,
        lengths_B: Tensor | None,
        keys_B: Tensor | None,
        plan: Plan,
        keeps: bool,
        *weights: Tensor,
    ) -> Tensor:
        blocks = _blocks(weights)
        texts, length, width = x_BLD.shape
        tokens, inner = texts * length, len(blocks[0].up)
        fused = narrow.fits(texts, length, width, width // plan.heads, inner)
        needed = keeps and any(ctx.needs_input_grad)
        layers = len(blocks) if needed else 1  # without a way back, each layer overwrites the one before

        def room(count: int, columns: int) -> Tensor:
            return torch.empty(count, tokens, columns, dtype=x_BLD.dtype, device=x_BLD.device)

        inner_KTF = room(layers, inner)
        arrays = _Arrays(
            room(layers + 1, width), room(layers, 3 * width), room(layers, width), room(layers, width),
            inner_KTF, inner_KTF if fused else room(layers, inner),
        )  # fmt: skip
        arrays.x_KTD[0].copy_(x_BLD.view(tokens, width))
        kept: list[_Kept] = []
        for number, block in enumerate(blocks):
            drops = _drops(keys_B, plan, number)
            x, z = arrays.x_KTD[number % (layers + 1)], arrays.x_KTD[(number + 1) % (layers + 1)]
            qkv, mixed, y, inner_TF, active = (array[number % layers] for array in arrays[1:])
            if fused:
                level, into = None, (qkv, mixed, y, inner_TF, z)
                sum1, mean1, rstd1, sum2, mean2, rstd2 = narrow.run_layer(
                    x, block, lengths_B, drops, length=length, heads=plan.heads, eps=plan.eps, into=into
                )
            else:
                torch.addmm(block.qkv_bias, x, block.qkv.t(), out=qkv)
                level = attend(qkv, lengths_B, drops[0], length=length, heads=plan.heads, out=mixed)
                sum1 = torch.addmm(block.out_bias, mixed, block.out.t())
                mean1, rstd1 = norms.add_norm(
                    sum1, x, block.gamma1, block.beta1, drops[1], length=length, eps=plan.eps, out=y
                )
                torch.addmm(block.up_bias, y, block.up.t(), out=inner_TF)
                gelus.gelu(inner_TF, out=active)
                sum2 = torch.addmm(block.down_bias, active, block.down.t())
                mean2, rstd2 = norms.add_norm(
                    sum2, y, block.gamma2, block.beta2, drops[2], length=length, eps=plan.eps, out=z
                )
            if needed:
                kept.append(_Kept(level, sum1, mean1, rstd1, sum2, mean2, rstd2))
        ctx.kept, ctx.arrays, ctx.weights, ctx.plan = kept, arrays if needed else None, weights, plan
        ctx.lengths_B, ctx.keys_B, ctx.shape = lengths_B, keys_B, x_BLD.shape
        return arrays.x_KTD[len(blocks) % (layers + 1)].view(x_BLD.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.kept:
            raise RuntimeError("the fused layers go backwards once: what they kept is overwritten on the way")
        plan, (texts, length, width) = ctx.plan, ctx.shape
        blocks, tokens = _blocks(ctx.weights), texts * length
        layers, inner = len(blocks), len(blocks[0].up)
        x_KTD, qkv_KTW, mixed_KTD, y_KTD, inner_KTF, active_KTF = ctx.arrays
        gradient = gradient_BLD.contiguous().view(tokens, width)
        together = layers if tokens * width <= TOGETHER else 1

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=gradient.dtype, device=gradient.device)

        def sums(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=gradient.device)

        d_out_KTD, d_down_KTD = room(together, tokens, width), room(together, tokens, width)
        d_inner_KTF = room(together, tokens, inner)
        qkv_KWD, out_KDD = room(layers, 3 * width, width), room(layers, width, width)
        up_KFD, down_KDF = room(layers, inner, width), room(layers, width, inner)
        # One line a program, summed once for all layers at the end.
        qkv_sums = sums(layers, texts, 3 * width)
        norm_sums = sums(2 * layers, norms.programs(tokens, width), 3 * width)
        gelu_sums = sums(layers, gelus.programs(tokens), inner)
        for number in reversed(range(layers)):
            block, kept = blocks[number], ctx.kept.pop()
            drops = _drops(ctx.keys_B, plan, number)
            d_out, d_down, d_inner = (array[number % together] for array in (d_out_KTD, d_down_KTD, d_inner_KTF))
            norms.add_norm_backward(
                gradient, kept.sum2, kept.mean2, kept.rstd2, block.gamma2, drops[2], d_down,
                norm_sums[2 * number + 1], length=length,
            )  # fmt: skip
            torch.mm(d_down, block.down, out=d_inner)
            gelus.gelu_backward(inner_KTF[number], d_inner, gelu_sums[number], replace=active_KTF is inner_KTF)
            kept.sum2.addmm_(d_inner, block.up)
            norms.add_norm_backward(
                kept.sum2, kept.sum1, kept.mean1, kept.rstd1, block.gamma1, drops[1], d_out,
                norm_sums[2 * number], length=length,
            )  # fmt: skip
            attend_backward(
                qkv_KTW[number], d_out @ block.out, mixed_KTD[number], kept.level, ctx.lengths_B, drops[0],
                qkv_sums[number], length=length, heads=plan.heads,
            )  # fmt: skip
            gradient = kept.sum1.addmm_(qkv_KTW[number], block.qkv)
            if number % together == 0:
                group = slice(number, number + together)
                _product(d_down_KTD, active_KTF[group], down_KDF[group])
                _product(d_inner_KTF, y_KTD[group], up_KFD[group])
                _product(d_out_KTD, mixed_KTD[group], out_KDD[group])
                _product(qkv_KTW[group], x_KTD[group], qkv_KWD[group])
        ctx.arrays = None
        kind = blocks[0].qkv_bias.dtype
        norm_K23D = norm_sums.sum(1).view(layers, 2, 3, width)
        qkv_bias_KW, up_bias_KF, bias_K2D = (
            qkv_sums.sum(1).to(kind),
            gelu_sums.sum(1).to(kind),
            norm_K23D[:, :, 2].to(kind),
        )
        gradients: list[Tensor] = []
        for k in range(layers):
            (gamma1, beta1, _), (gamma2, beta2, _) = norm_K23D[k].unbind()
            gradients += Block(
                qkv_KWD[k], qkv_bias_KW[k], out_KDD[k], bias_K2D[k, 0], gamma1, beta1,
                up_KFD[k], up_bias_KF[k], down_KDF[k], bias_K2D[k, 1], gamma2, beta2,
            )  # fmt: skip
        return gradient.view(ctx.shape), None, None, None, None, *gradients


def _product(gradient_KTN: Tensor, given_KTM: Tensor, out_KNM: Tensor) -> None:
    """The gradients of a few layers' weights."""
    if len(out_KNM) == 1:
        torch.mm(gradient_KTN[0].t(), given_KTM[0], out=out_KNM[0])
    else:
        torch.bmm(gradient_KTN.transpose(1, 2), given_KTM, out=out_KNM)


def _blocks(weights: Sequence[Tensor]) -> list[Block]:
    size = len(Block._fields)
    return [Block(*weights[first : first + size]) for first in range(0, len(weights), size)]


def _drops(keys_B: Tensor | None, plan: Plan, number: int) -> list[Drop]:
    """Dropout in one layer: of attention, of its output, and of the feed-forward output."""
    rates = (plan.attention_rate, plan.rate, plan.rate)
    return [drop_at(keys_B, rate, number * plan.sites + place) for place, rate in enumerate(rates)]
