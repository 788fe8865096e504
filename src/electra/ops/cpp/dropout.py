"""Dropout in one pass forward and one backward, which draws the random bits again instead of saving a mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra import rng
from electra.ops.cpp.library import call
from electra.ops.first_order import first_order_only
from electra.ops.reference.dropout import index_table


class Dropout(NamedTuple):
    """Dropout at one call site, as the C++ functions take it; without keys, none."""

    keys_B: Tensor | None
    indices_P: Tensor | None
    """The mixed indices of the pairs of columns of a row."""
    threshold: int
    scale: float
    """1 / keep probability."""


NONE = Dropout(None, None, 0, 1.0)


def dropout_of(keys_B: Tensor | None, rate: float, columns: int) -> Dropout:
    """Dropout that keeps what `reference.dropout.keep_mask` keeps, for rows of `columns`."""
    if keys_B is None or rate == 0.0:
        return NONE
    indices_P = index_table((columns + 1) // 2, keys_B.device)
    return Dropout(keys_B.contiguous(), indices_P, rng.drop_threshold(rate), 1.0 / (1.0 - rate))


def dropout(x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
    drop = dropout_of(keys_B, rate, x.shape[-1])
    if drop.keys_B is None:
        return x
    y: Tensor = _Dropout.apply(x, drop)  # type: ignore[no-untyped-call]
    return y


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Dropout) -> Tensor:
        ctx.drop = drop
        return _dropped(x, drop)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _dropped(gradient, ctx.drop), None


def _dropped(x: Tensor, drop: Dropout) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    sequences, columns = len(x), x.shape[-1]
    call("dropout", x.dtype, x, y, *drop, sequences, x.numel() // max(1, sequences * columns), columns)
    return y
