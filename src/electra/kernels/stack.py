"""A stack of post-norm transformer layers as one differentiable step, written out forwards and backwards.

Between matrix products stand fused kernels, and each buffer is used again as soon as what it holds is spent. The plain
twin is `model.layers.Layer`.

Shapes: B texts, L length, T = B·L tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.kernels import gelu as gelus
from electra.kernels import narrow
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.layers import Plan, blocks_of, drops_at
from electra.kernels.narrow_stack import NarrowStack


class _Kept(NamedTuple):
    """What the way back needs of one layer."""

    x: Tensor
    qkv: Tensor
    mixed: Tensor
    level: Tensor
    sum1: Tensor
    mean1: Tensor
    rstd1: Tensor
    y: Tensor
    inner: Tensor
    active: Tensor
    sum2: Tensor
    mean2: Tensor
    rstd2: Tensor


@torch.compiler.disable
def run_stack(
    x_BLD: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None, plan: Plan, weights: Sequence[Tensor]
) -> Tensor:
    """The last layer's output; `weights` are the layers' blocks, one after another."""
    # Lengths and keys are columns of the batch's rows otherwise.
    lengths_B = None if lengths_B is None else lengths_B.contiguous()
    keys_B = None if keys_B is None else keys_B.contiguous()
    keeps = torch.is_grad_enabled()  # which `forward` cannot ask: there it is always off
    stack = NarrowStack if narrow.fits(x_BLD.shape[2], len(blocks_of(weights)[0].up)) else _Stack
    y_BLD: Tensor = stack.apply(  # type: ignore[no-untyped-call]
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
        x = x_BLD.flatten(0, 1)
        length = x_BLD.shape[1]
        needed = keeps and any(ctx.needs_input_grad)
        kept: list[_Kept] = []
        for number, block in enumerate(blocks_of(weights)):
            drops = drops_at(keys_B, plan, number)
            qkv = F.linear(x, block.qkv, block.qkv_bias)
            mixed, level = attend(qkv, lengths_B, drops[0], length=length, heads=plan.heads)
            sum1 = F.linear(mixed, block.out, block.out_bias)
            y, mean1, rstd1 = norms.add_norm(sum1, x, block.gamma1, block.beta1, drops[1], length=length, eps=plan.eps)
            inner = F.linear(y, block.up, block.up_bias)
            active = gelus.gelu(inner)
            sum2 = F.linear(active, block.down, block.down_bias)
            z, mean2, rstd2 = norms.add_norm(sum2, y, block.gamma2, block.beta2, drops[2], length=length, eps=plan.eps)
            if needed:
                kept.append(_Kept(x, qkv, mixed, level, sum1, mean1, rstd1, y, inner, active, sum2, mean2, rstd2))
            x = z
        ctx.kept, ctx.weights, ctx.plan = kept, weights, plan
        ctx.lengths_B, ctx.keys_B, ctx.shape = lengths_B, keys_B, x_BLD.shape
        return x.view(x_BLD.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.kept:
            raise RuntimeError("the fused layers go backwards once: what they kept is overwritten on the way")
        plan, (texts, length, width) = ctx.plan, ctx.shape
        blocks, tokens = blocks_of(ctx.weights), texts * length
        gradient = gradient_BLD.contiguous().view(tokens, width)
        inner_width = ctx.kept[0].inner.shape[1]

        def sums(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=gradient.device)

        # One line a program, summed once for all layers at the end.
        qkv_sums = sums(len(blocks), texts, 3 * width)
        norm_sums = sums(2 * len(blocks), norms.programs(tokens, width), 3 * width)
        gelu_sums = sums(len(blocks), gelus.programs(tokens), inner_width)
        products: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for number in reversed(range(len(blocks))):
            block, kept = blocks[number], ctx.kept.pop()
            drops = drops_at(ctx.keys_B, plan, number)
            branch = torch.empty_like(kept.sum2)
            norms.add_norm_backward(
                gradient, kept.sum2, kept.mean2, kept.rstd2, block.gamma2, drops[2], branch,
                norm_sums[2 * number + 1], length=length,
            )  # fmt: skip
            inner = branch @ block.down
            gelus.gelu_backward(kept.inner, inner, gelu_sums[number])
            d_down, d_up = branch.t() @ kept.active, inner.t() @ kept.y
            gradient = kept.sum2.addmm_(inner, block.up)
            del inner
            norms.add_norm_backward(
                gradient, kept.sum1, kept.mean1, kept.rstd1, block.gamma1, drops[1], branch,
                norm_sums[2 * number], length=length,
            )  # fmt: skip
            d_out = branch.t() @ kept.mixed
            attend_backward(
                kept.qkv,
                branch @ block.out,
                kept.mixed,
                kept.level,
                ctx.lengths_B,
                drops[0],
                qkv_sums[number],
                length=length,
                heads=plan.heads,
            )
            d_qkv = kept.qkv.t() @ kept.x
            gradient = kept.sum1.addmm_(kept.qkv, block.qkv)
            products.append((d_qkv, d_out, d_up, d_down))
        products.reverse()
        qkv_biases = qkv_sums.sum(1).to(blocks[0].qkv_bias.dtype)
        norms_K2 = norm_sums.sum(1).view(len(blocks), 2, 3, width)
        out_biases = norms_K2[:, :, 2].to(blocks[0].out_bias.dtype)
        up_biases = gelu_sums.sum(1).to(blocks[0].up_bias.dtype)
        gradients: list[Tensor | None] = []
        for number, (d_qkv, d_out, d_up, d_down) in enumerate(products):
            (gamma1, beta1, _), (gamma2, beta2, _) = norms_K2[number].unbind()
            gradients += [d_qkv, qkv_biases[number], d_out, out_biases[number, 0], gamma1, beta1]
            gradients += [d_up, up_biases[number], d_down, out_biases[number, 1], gamma2, beta2]
        return gradient.view(ctx.shape), None, None, None, None, *gradients
