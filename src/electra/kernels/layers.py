"""What the fused stacks are told: the weights of their layers, their sizes and places of dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

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


def blocks_of(weights: Sequence[Tensor]) -> list[Block]:
    """The layers of a stack's weights."""
    size = len(Block._fields)
    return [Block(*weights[first : first + size]) for first in range(0, len(weights), size)]


def drops_at(keys_B: Tensor | None, plan: Plan, number: int) -> list[Drop]:
    """Dropout in one layer: of attention, of its output, and of the feed-forward output."""
    rates = (plan.attention_rate, plan.rate, plan.rate)
    return [drop_at(keys_B, rate, number * plan.sites + place) for place, rate in enumerate(rates)]
