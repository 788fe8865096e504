"""Dropout in one pass each way; its plain twin is `model.dropout`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.kernels.host.library import call


class Chance(NamedTuple):
    """How one place in the network drops, as `model.dropout.keep_mask` chooses."""

    keys_B: Tensor
    indices_P: Tensor
    """The mixed indices of the pairs of a row."""
    threshold: int
    grow: float
    """What is kept is multiplied by this."""


def words(chance: Chance | None) -> tuple[Tensor | int | float | None, ...]:
    """A chance as the loops take it: no keys where nothing is dropped."""
    return (None, None, 0, 1.0) if chance is None else chance


def drop(x: Tensor, chance: Chance) -> Tensor:
    """`x` with elements zeroed and the rest multiplied; on the way back the words are drawn again instead of kept."""
    y: Tensor = _InOnePass.apply(x, chance)  # type: ignore[no-untyped-call]
    return y


class _InOnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, chance: Chance) -> Tensor:
        ctx.chance = chance
        return _dropped(x, chance)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _dropped(gradient, ctx.chance), None


def _dropped(x: Tensor, chance: Chance) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    texts, width = len(x), x.shape[-1]
    call("drop", x.dtype, x, y, *words(chance), texts, x.numel() // max(1, texts * width), width)
    return y
