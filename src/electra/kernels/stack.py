"""A stack of post-norm transformer layers as one differentiable step, written out forwards and backwards.

Between matrix products stand fused kernels, and each buffer is used again as soon as what it holds is spent. What the
way back needs lies in arrays over all layers. Narrow layers, whose products are too small to fill the chip, get their
weights' gradients at the end, one batched product for all layers. The plain twin is `model.layers.Layer`.

Shapes: B texts, L length, T = B·L tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from electra.batches.sequences import Spans
from electra.kernels import narrow
from electra.kernels.layer import Block, Kept, Lines, Plan, Spent, drops_of, go_back, make_lines, make_rooms, run_layer
from electra.kernels.sums import sum_lines

TOGETHER = 2**22
"""Products of stacks of this many activations do not fill the chip: those of all layers are made at once."""


@torch.compiler.disable
def run_stack(
    x_BLD: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None, plan: Plan, weights: Sequence[Tensor],
    spans: Spans | None = None,
) -> Tensor:  # fmt: skip
    """The last layer's output; `weights` are the layers' blocks, one after another.

    With `spans`, a token sees what lies in its span, and lengths play no part.
    """
    # Lengths and keys are columns of the batch's rows otherwise.
    lengths_B = None if lengths_B is None else lengths_B.contiguous().int()
    keys_B = None if keys_B is None else keys_B.contiguous()
    spans = None if spans is None else Spans(*(bound_BL.contiguous().int() for bound_BL in spans))
    keeps = torch.is_grad_enabled()  # which `forward` cannot ask: there it is always off
    with torch.cuda.device_of(x_BLD):
        y_BLD: Tensor = _Stack.apply(  # type: ignore[no-untyped-call]
            x_BLD.contiguous(), lengths_B, spans, keys_B, plan, keeps, *weights
        )
    return y_BLD


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BLD: Tensor,
        lengths_B: Tensor | None,
        spans: Spans | None,
        keys_B: Tensor | None,
        plan: Plan,
        keeps: bool,
        *weights: Tensor,
    ) -> Tensor:
        blocks = _blocks(weights)
        texts, length, width = x_BLD.shape
        tokens, inner = texts * length, len(blocks[0].up)
        fused = spans is None and narrow.fits(x_BLD, heads=plan.heads, inner=inner)
        needed = keeps and any(ctx.needs_input_grad)
        keeps_all = needed and not plan.recompute  # else each layer overwrites the one before
        rooms = make_rooms(x_BLD, len(blocks) if keeps_all else 1, tokens, inner, fused=fused)
        x_KTD = torch.empty(len(blocks) + 1 if needed else 2, tokens, width, dtype=x_BLD.dtype, device=x_BLD.device)
        x_KTD[0].copy_(x_BLD.view(tokens, width))
        kept: list[Kept] = []
        for number, block in enumerate(blocks):
            one = run_layer(
                x_KTD[number % len(x_KTD)], block, rooms.of(number), lengths_B, drops_of(keys_B, plan, number), plan,
                length=length, spans=spans, fused=fused, out=x_KTD[(number + 1) % len(x_KTD)],
            )  # fmt: skip
            if keeps_all:
                kept.append(one)
        if needed:
            ctx.kept, ctx.x_KTD, ctx.rooms = kept, x_KTD, rooms if keeps_all else None
            ctx.weights, ctx.plan, ctx.spans = weights, plan, spans
            ctx.fused, ctx.lengths_B, ctx.keys_B, ctx.shape = fused, lengths_B, keys_B, x_BLD.shape
        return x_KTD[len(blocks) % len(x_KTD)].view(x_BLD.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.x_KTD is None:
            raise RuntimeError("the fused layers go backwards once: what they kept is overwritten on the way")
        plan, (texts, length, width) = ctx.plan, ctx.shape
        blocks, tokens = _blocks(ctx.weights), texts * length
        layers, inner = len(blocks), len(blocks[0].up)
        x_KTD = ctx.x_KTD
        rooms = ctx.rooms or make_rooms(gradient_BLD, 1, tokens, inner, fused=ctx.fused)
        gradient = gradient_BLD.contiguous().view(tokens, width)
        together = layers if tokens * width <= TOGETHER and not plan.recompute else 1

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=gradient.dtype, device=gradient.device)

        spent = Spent(room(together, tokens, width), room(together, tokens, inner), room(together, tokens, width))
        qkv_KWD, out_KDD = room(layers, 3 * width, width), room(layers, width, width)
        up_KFD, down_KDF = room(layers, inner, width), room(layers, width, inner)
        # Summed once for all layers at the end.
        lines = make_lines(gradient, layers, texts, tokens, inner, fused=ctx.fused)
        for number in reversed(range(layers)):
            block, drops, here = blocks[number], drops_of(ctx.keys_B, plan, number), rooms.of(number)
            if plan.recompute:
                kept = run_layer(
                    x_KTD[number], block, here, ctx.lengths_B, drops, plan,
                    length=length, spans=ctx.spans, fused=ctx.fused, out=torch.empty_like(x_KTD[number]),
                )  # fmt: skip
            else:
                kept = ctx.kept.pop()
            gradient = go_back(
                gradient, block, here, kept, Spent(*(array[number % together] for array in spent)),
                Lines(*(array[number] for array in lines)), ctx.lengths_B, drops, plan,
                length=length, spans=ctx.spans, fused=ctx.fused,
            )  # fmt: skip
            if number % together == 0:
                group = slice(number, number + together)
                held = group if len(rooms.qkv_KTW) == layers else slice(0, 1)
                _product(spent.d_down, rooms.active_KTF[held], down_KDF[group])
                _product(spent.d_inner, rooms.y_KTD[held], up_KFD[group])
                _product(spent.d_out, rooms.mixed_KTD[held], out_KDD[group])
                _product(rooms.qkv_KTW[held], x_KTD[group], qkv_KWD[group])
        ctx.x_KTD = ctx.rooms = None
        kind = blocks[0].qkv_bias.dtype
        norm1_K3D, norm2_K3D = (sum_lines(line).view(layers, 3, width) for line in (lines.norm1, lines.norm2))
        up_bias_KF, qkv_bias_KW = sum_lines(lines.up, kind), sum_lines(lines.qkv, kind)
        out_bias_KD, down_bias_KD = norm1_K3D[:, 2].to(kind), norm2_K3D[:, 2].to(kind)
        gradients: list[Tensor] = []
        for k in range(layers):
            gradients += Block(
                qkv_KWD[k], qkv_bias_KW[k], out_KDD[k], out_bias_KD[k], norm1_K3D[k, 0], norm1_K3D[k, 1],
                up_KFD[k], up_bias_KF[k], down_KDF[k], down_bias_KD[k], norm2_K3D[k, 0], norm2_K3D[k, 1],
            )  # fmt: skip
        return gradient.view(ctx.shape), None, None, None, None, None, *gradients


def _product(gradient_KTN: Tensor, given_KTM: Tensor, out_KNM: Tensor) -> None:
    """The gradients of a few layers' weights."""
    if len(out_KNM) == 1:
        torch.mm(gradient_KTN[0].t(), given_KTM[0], out=out_KNM[0])
    else:
        torch.bmm(gradient_KTN.transpose(1, 2), given_KTM, out=out_KNM)


def _blocks(weights: Sequence[Tensor]) -> list[Block]:
    size = len(Block._fields)
    return [Block(*weights[first : first + size]) for first in range(0, len(weights), size)]
