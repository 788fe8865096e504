"""One post-norm transformer layer, there and back: what the stack is made of, and what its way back keeps of it.

Shapes: T tokens, D width, W = 3·D, F inner width, K layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from electra.batches.sequences import Spans
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.feed import down_backward, lines_of, up_gelu
from electra.kernels.hashing import Drop, drop_at


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
    recompute: bool = False
    """Keep each layer's input only, and run the layer once more on the way back."""


class Rooms(NamedTuple):
    """Arrays that layers write what the products of the way back read into: one place a layer, or one for all."""

    qkv_KTW: Tensor
    mixed_KTD: Tensor
    y_KTD: Tensor
    inner_KTF: Tensor
    active_KTF: Tensor
    """The GELU's output; `inner_KTF` itself where the way back of a whole layer in one kernel puts it there."""

    def of(self, number: int) -> Rooms:
        """One layer's part of each."""
        return Rooms(*(array[number % len(array)] for array in self))

    def some(self, group: slice) -> Rooms:
        """A few layers' parts, or the one place for all."""
        return self if len(self.qkv_KTW) == 1 else Rooms(*(array[group] for array in self))


class Kept(NamedTuple):
    """What else the way back needs of one layer, or of some in one array each."""

    level: Tensor | None
    sum1: Tensor
    mean1: Tensor
    rstd1: Tensor
    sum2: Tensor
    mean2: Tensor
    rstd2: Tensor


class Spent(NamedTuple):
    """Gradients that products of weights read: after the second product, before the GELU, after attention's product."""

    d_down: Tensor
    d_inner: Tensor
    d_out: Tensor


class Lines(NamedTuple):
    """What adds up to the gradients of vectors: each norm's weights with the bias before it, the other biases."""

    norm1: Tensor
    norm2: Tensor
    up: Tensor
    qkv: Tensor


def make_rooms(like: Tensor, layers: int, tokens: int, inner: int, *, fused: bool) -> Rooms:
    """Places for so many layers, of the width and type of `like`."""
    width = like.shape[-1]

    def room(columns: int) -> Tensor:
        return torch.empty(layers, tokens, columns, dtype=like.dtype, device=like.device)

    inner_KTF = room(inner)
    return Rooms(room(3 * width), room(width), room(width), inner_KTF, inner_KTF if fused else room(inner))


def run_layer(
    x_TD: Tensor, block: Block, rooms: Rooms, lengths_B: Tensor | None, drops: list[Drop], plan: Plan,
    length: int, spans: Spans | None, *, out: Tensor,
) -> Kept:  # fmt: skip
    """Fill `out` with the layer's output and its `rooms` on the way."""
    qkv, mixed, y, inner, active = rooms
    torch.addmm(block.qkv_bias, x_TD, block.qkv.t(), out=qkv)
    level = attend(qkv, lengths_B, drops[0], length=length, heads=plan.heads, out=mixed, spans=spans)
    sum1 = torch.addmm(block.out_bias, mixed, block.out.t())
    norm1 = norms.add_norm(sum1, x_TD, block.gamma1, block.beta1, drops[1], length=length, eps=plan.eps, out=y)
    up_gelu(y, block.up, block.up_bias, inner=inner, active=active)
    sum2 = torch.addmm(block.down_bias, active, block.down.t())
    norm2 = norms.add_norm(sum2, y, block.gamma2, block.beta2, drops[2], length=length, eps=plan.eps, out=out)
    return Kept(level, sum1, *norm1, sum2, *norm2)


def go_back(
    gradient_TD: Tensor, block: Block, rooms: Rooms, kept: Kept, spent: Spent, lines: Lines, lengths_B: Tensor | None,
    drops: list[Drop], plan: Plan, length: int, spans: Spans | None,
) -> Tensor:  # fmt: skip
    """The gradient of the layer's input; fills `spent` and `lines`, and overwrites what was kept.

    `rooms` then hold the gradients of queries, keys and values, and the GELU's output.
    """
    d_down, d_inner, d_out = spent
    norms.add_norm_backward(
        gradient_TD, kept.sum2, kept.mean2, kept.rstd2, block.gamma2, drops[2], d_down, lines.norm2, length=length
    )
    down_backward(d_down, block.down, rooms.inner_KTF, d_inner, lines.up)
    kept.sum2.addmm_(d_inner, block.up)
    norms.add_norm_backward(
        kept.sum2, kept.sum1, kept.mean1, kept.rstd1, block.gamma1, drops[1], d_out, lines.norm1, length=length
    )
    attend_backward(
        rooms.qkv_KTW, d_out @ block.out, rooms.mixed_KTD, kept.level, lengths_B, drops[0], lines.qkv,
        length=length, heads=plan.heads, spans=spans,
    )  # fmt: skip
    return kept.sum1.addmm_(rooms.qkv_KTW, block.qkv)


def make_lines(like: Tensor, layers: int, texts: int, tokens: int, inner: int, *, fused: bool) -> Lines:
    """Places for the lines of so many layers."""
    width = like.shape[-1]

    def room(lines: int, columns: int) -> Tensor:
        return torch.empty(layers, lines, columns, dtype=torch.float32, device=like.device)

    norm = texts if fused else norms.lines_of(like.view(tokens, width))
    up = texts if fused else lines_of(like.view(tokens, width), inner)
    return Lines(room(norm, 3 * width), room(norm, 3 * width), room(up, inner), room(texts, 3 * width))


def drops_of(keys_B: Tensor | None, plan: Plan, number: int) -> list[Drop]:
    """Dropout in one layer: of attention, of its output, and of the feed-forward output."""
    rates = (plan.attention_rate, plan.rate, plan.rate)
    return [drop_at(keys_B, rate, number * plan.sites + place) for place, rate in enumerate(rates)]
