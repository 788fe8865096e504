"""A stack of narrow layers: feed-forward halves in one kernel each, weight gradients of all layers in one product each.

Layers as narrow as a generator's leave the chip idle between launches, so fewer launches are what counts. What the
layers keep lies in arrays over all layers, which the batched products at the end read.

Shapes: K layers, T tokens, D width, W = 3·D, F inner width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from electra.kernels import narrow
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.layers import Block, Plan, blocks_of, drops_at


class NarrowStack(torch.autograd.Function):
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
        blocks = blocks_of(weights)
        layers, (texts, length, width) = len(blocks), x_BLD.shape
        tokens = texts * length

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=x_BLD.dtype, device=x_BLD.device)

        x_KTD = room(layers + 1, tokens, width)
        x_KTD[0].copy_(x_BLD.view(tokens, width))
        qkv_KTW, mixed_KTD, y_KTD = (
            room(layers, tokens, 3 * width),
            room(layers, tokens, width),
            room(layers, tokens, width),
        )
        kept: list[tuple[Tensor, ...]] = []
        for number, block in enumerate(blocks):
            drops = drops_at(keys_B, plan, number)
            torch.addmm(block.qkv_bias, x_KTD[number], block.qkv.t(), out=qkv_KTW[number])
            _, level = attend(
                qkv_KTW[number], lengths_B, drops[0], length=length, heads=plan.heads, out=mixed_KTD[number]
            )
            sum1 = torch.addmm(block.out_bias, mixed_KTD[number], block.out.t())
            _, mean1, rstd1 = norms.add_norm(
                sum1, x_KTD[number], block.gamma1, block.beta1, drops[1],
                length=length, eps=plan.eps, out=y_KTD[number],
            )  # fmt: skip
            sum2, mean2, rstd2 = narrow.feed_forward(
                y_KTD[number], block.up, block.up_bias, block.down, block.down_bias, block.gamma2, block.beta2,
                drops[2], length=length, eps=plan.eps, out=x_KTD[number + 1],
            )  # fmt: skip
            kept.append((level, sum1, mean1, rstd1, sum2, mean2, rstd2))
        out = x_KTD[layers].view(x_BLD.shape)
        if keeps and any(ctx.needs_input_grad):
            ctx.kept, ctx.stacks, ctx.weights, ctx.plan = (
                kept,
                (x_KTD[:layers], qkv_KTW, mixed_KTD, y_KTD),
                weights,
                plan,
            )
            ctx.lengths_B, ctx.keys_B, ctx.shape = lengths_B, keys_B, x_BLD.shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.kept:
            raise RuntimeError("the fused layers go backwards once: what they kept is overwritten on the way")
        plan, (texts, length, width) = ctx.plan, ctx.shape
        blocks, tokens = blocks_of(ctx.weights), texts * length
        layers, inner = len(blocks), len(blocks[0].up)
        x_KTD, qkv_KTW, mixed_KTD, y_KTD = ctx.stacks
        gradient = gradient_BLD.contiguous().view(tokens, width)

        def sums(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=gradient.device)

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=gradient.dtype, device=gradient.device)

        qkv_sums = sums(layers, texts, 3 * width)
        norm1_sums = sums(layers, norms.programs(tokens, width), 3 * width)
        norm2_sums = sums(layers, narrow.programs(tokens), 3 * width)
        up_sums = sums(layers, narrow.programs(tokens), inner)
        branch1_KTD, branch2_KTD = room(layers, tokens, width), room(layers, tokens, width)
        active_KTF, inner_KTF = room(layers, tokens, inner), room(layers, tokens, inner)
        for number in reversed(range(layers)):
            block, (level, sum1, mean1, rstd1, sum2, mean2, rstd2) = blocks[number], ctx.kept.pop()
            drops = drops_at(ctx.keys_B, plan, number)
            narrow.feed_forward_backward(
                gradient, y_KTD[number], block.up, block.up_bias, block.down, block.gamma2, sum2, mean2, rstd2,
                drops[2], norm2_sums[number], up_sums[number], length=length,
                into=(branch2_KTD[number], active_KTF[number], inner_KTF[number]),
            )  # fmt: skip
            norms.add_norm_backward(
                sum2, sum1, mean1, rstd1, block.gamma1, drops[1], branch1_KTD[number], norm1_sums[number], length=length
            )
            attend_backward(
                qkv_KTW[number], branch1_KTD[number] @ block.out, mixed_KTD[number], level, ctx.lengths_B, drops[0],
                qkv_sums[number], length=length, heads=plan.heads,
            )  # fmt: skip
            gradient = sum1.addmm_(qkv_KTW[number], block.qkv)
        d_qkv = torch.bmm(qkv_KTW.transpose(1, 2), x_KTD)
        d_out = torch.bmm(branch1_KTD.transpose(1, 2), mixed_KTD)
        d_up = torch.bmm(inner_KTF.transpose(1, 2), y_KTD)
        d_down = torch.bmm(branch2_KTD.transpose(1, 2), active_KTF)
        ctx.stacks = ()
        bias = blocks[0].qkv_bias.dtype
        qkv_biases, up_biases = qkv_sums.sum(1).to(bias), up_sums.sum(1).to(bias)
        norm1, norm2 = norm1_sums.sum(1).view(layers, 3, width), norm2_sums.sum(1).view(layers, 3, width)
        out_biases, down_biases = norm1[:, 2].to(bias), norm2[:, 2].to(bias)
        gradients: list[Tensor] = []
        for k in range(layers):
            gradients += Block(
                d_qkv[k], qkv_biases[k], d_out[k], out_biases[k], norm1[k, 0], norm1[k, 1],
                d_up[k], up_biases[k], d_down[k], down_biases[k], norm2[k, 0], norm2[k, 1],
            )  # fmt: skip
        return gradient.view(ctx.shape), None, None, None, None, *gradients
