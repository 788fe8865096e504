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
from electra.kernels import narrow, wide
from electra.kernels.hashing import Drop
from electra.kernels.layer import (
    Block,
    Kept,
    Lines,
    Plan,
    Rooms,
    Spent,
    drops_of,
    go_back,
    make_lines,
    make_rooms,
    run_layer,
)
from electra.kernels.sums import sum_into

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
        whole = fused or (spans is None and wide.fits(x_BLD, heads=plan.heads, inner=inner))
        needed = keeps and any(ctx.needs_input_grad)
        keeps_all = needed and not plan.recompute  # else each layer overwrites the one before
        rooms = make_rooms(x_BLD, len(blocks) if keeps_all else 1, tokens, inner, fused=fused)
        x_KTD = torch.empty(len(blocks) + 1 if needed else 2, tokens, width, dtype=x_BLD.dtype, device=x_BLD.device)
        x_KTD[0].copy_(x_BLD.view(tokens, width))
        drops = [drops_of(keys_B, plan, number) for number in range(len(blocks))]
        kept: list[Kept] = []
        at_once = len(blocks) if whole and keeps_all else 1
        for number in range(0, len(blocks), at_once):
            x_TD, next_x = x_KTD[number % len(x_KTD)], (number + 1) % len(x_KTD)
            group = slice(number, number + at_once)
            into, given = x_KTD[next_x : next_x + at_once], (blocks[group], rooms.some(group), lengths_B, drops[group])
            if fused:
                some = [_run_narrow(x_TD, *given, plan, length, into)]
            elif whole:
                some = _run_wide(x_TD, *given, plan, length, into)
            else:
                one = rooms.of(number)
                some = [
                    run_layer(x_TD, blocks[number], one, lengths_B, drops[number], plan, length, spans, out=into[0])
                ]
            if keeps_all:
                kept += some
        if needed:
            ctx.kept, ctx.x_KTD, ctx.rooms = kept, x_KTD, rooms if keeps_all else None
            ctx.weights, ctx.plan, ctx.spans = weights, plan, spans
            ctx.fused, ctx.whole, ctx.lengths_B, ctx.keys_B, ctx.shape = fused, whole, lengths_B, keys_B, x_BLD.shape
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
        # A layer's gradients lie end to end, as its weights do where they are trained: all layers' then move as one.
        matrices = room(layers, 4 * width * width + 2 * inner * width)
        qkv_KWD, out_KDD, up_KFD, down_KDF = (
            part.unflatten(1, shape)
            for part, shape in zip(
                matrices.split((3 * width * width, width * width, inner * width, inner * width), 1),
                ((3 * width, width), (width, width), (inner, width), (width, inner)),
                strict=True,
            )
        )
        # Summed once for all layers at the end.
        lines = make_lines(gradient, layers, texts, tokens, inner, fused=ctx.fused)
        go = _narrow_back if ctx.fused else _layers_back
        for first in reversed(range(0, layers, together)):
            group = slice(first, first + together)
            gradient = go(ctx, gradient, blocks[group], group, rooms, spent, Lines(*(line[group] for line in lines)))
            held = rooms.some(group)
            _product(spent.d_down, held.active_KTF, down_KDF[group])
            _product(spent.d_inner, held.y_KTD, up_KFD[group])
            _product(spent.d_out, held.mixed_KTD, out_KDD[group])
            _product(held.qkv_KTW, x_KTD[group], qkv_KWD[group])
        ctx.x_KTD = ctx.rooms = None
        kind = blocks[0].qkv_bias.dtype
        biases = torch.empty(layers, 5 * width + inner, dtype=kind, device=gradient.device)
        qkv_bias_KW, out_bias_KD, up_bias_KF, down_bias_KD = biases.split((3 * width, width, inner, width), 1)
        norms_KN = torch.empty(layers, 4 * width, dtype=torch.float32, device=gradient.device)
        sum_into(
            (lines.norm1[..., : 2 * width], norms_KN[:, : 2 * width]),
            (lines.norm2[..., : 2 * width], norms_KN[:, 2 * width :]),
            (lines.norm1[..., 2 * width :], out_bias_KD), (lines.norm2[..., 2 * width :], down_bias_KD),
            (lines.qkv, qkv_bias_KW), (lines.up, up_bias_KF),
        )  # fmt: skip
        gradients: list[Tensor] = []
        for k in range(layers):
            gamma1, beta1, gamma2, beta2 = norms_KN[k].split(width)
            gradients += Block(
                qkv_KWD[k], qkv_bias_KW[k], out_KDD[k], out_bias_KD[k], gamma1, beta1,
                up_KFD[k], up_bias_KF[k], down_KDF[k], down_bias_KD[k], gamma2, beta2,
            )  # fmt: skip
        return gradient.view(ctx.shape), None, None, None, None, None, *gradients


def _run_narrow(
    x_TD: Tensor, blocks: list[Block], rooms: Rooms, lengths_B: Tensor | None, drops: list[list[Drop]], plan: Plan,
    length: int, out_KTD: Tensor,
) -> Kept:  # fmt: skip
    """Layers in one kernel: fills `out_KTD` with their outputs, and `rooms` on the way."""
    into = (rooms.qkv_KTW, rooms.mixed_KTD, rooms.y_KTD, rooms.inner_KTF, out_KTD)
    return Kept(*narrow.run_layers(x_TD, blocks, lengths_B, drops, length=length, eps=plan.eps, into=into))


def _run_wide(
    x_TD: Tensor, blocks: list[Block], rooms: Rooms, lengths_B: Tensor | None, drops: list[list[Drop]], plan: Plan,
    length: int, out_KTD: Tensor,
) -> list[Kept]:  # fmt: skip
    """The same for wide layers, which go back one by one."""
    kept = wide.run_layers(x_TD, blocks, lengths_B, drops, length=length, eps=plan.eps, into=(*rooms, out_KTD))
    return [Kept(*(array[number] for array in kept)) for number in range(len(blocks))]


def _narrow_back(
    ctx: Any, gradient_TD: Tensor, blocks: list[Block], group: slice, rooms: Rooms, spent: Spent, lines: Lines
) -> Tensor:
    """The gradient of the input of a group of layers, by one kernel; fills `spent` and `lines`."""
    length, held, x_KTD = ctx.shape[1], rooms.some(group), ctx.x_KTD[group]
    drops = [drops_of(ctx.keys_B, ctx.plan, number) for number in range(group.start, group.stop)]
    if ctx.plan.recompute:
        out_KTD = torch.empty_like(x_KTD)
        kept = _run_narrow(x_KTD[0], blocks, held, ctx.lengths_B, drops, ctx.plan, length, out_KTD)
    else:
        kept = Kept(*(array[group] for array in ctx.kept[0]))
    assert kept.level is not None
    arrays = (held.qkv_KTW, held.mixed_KTD, kept.level, held.inner_KTF, *kept[1:])
    return narrow.run_backward(gradient_TD, blocks, arrays, ctx.lengths_B, drops, spent, lines, length=length)


def _layers_back(
    ctx: Any, gradient_TD: Tensor, blocks: list[Block], group: slice, rooms: Rooms, spent: Spent, lines: Lines
) -> Tensor:
    """The same, layer by layer."""
    for place, number in reversed(list(enumerate(range(group.start, group.stop)))):
        drops, here, how = drops_of(ctx.keys_B, ctx.plan, number), rooms.of(number), (ctx.shape[1], ctx.spans)
        if ctx.plan.recompute:
            x_TD, out_TD = ctx.x_KTD[number], torch.empty_like(ctx.x_KTD[number])
            given = (ctx.lengths_B, drops, ctx.plan, *how)
            kept = _run_again(x_TD, blocks[place], here, *given, out_TD, whole=ctx.whole)
        else:
            kept = ctx.kept.pop()
        gradient_TD = go_back(
            gradient_TD, blocks[place], here, kept, Spent(*(array[place] for array in spent)),
            Lines(*(array[place] for array in lines)), ctx.lengths_B, drops, ctx.plan, *how,
        )  # fmt: skip
    return gradient_TD


def _run_again(
    x_TD: Tensor, block: Block, rooms: Rooms, lengths_B: Tensor | None, drops: list[Drop], plan: Plan, length: int,
    spans: Spans | None, out_TD: Tensor, *, whole: bool,
) -> Kept:  # fmt: skip
    """One layer as it was run before."""
    if not whole:
        return run_layer(x_TD, block, rooms, lengths_B, drops, plan, length, spans, out=out_TD)
    some = Rooms(*(array[None] for array in rooms))
    return _run_wide(x_TD, [block], some, lengths_B, [drops], plan, length, out_TD[None])[0]


def _product(gradient_KTN: Tensor, given_KTM: Tensor, out_KNM: Tensor) -> None:
    """The gradients of a few layers' weights."""
    if len(out_KNM) == 1:
        torch.mm(gradient_KTN[0].t(), given_KTM[0], out=out_KNM[0])
    else:
        torch.bmm(gradient_KTN.transpose(1, 2), given_KTM, out=out_KNM)


def _blocks(weights: Sequence[Tensor]) -> list[Block]:
    size = len(Block._fields)
    return [Block(*weights[first : first + size]) for first in range(0, len(weights), size)]
