"""Faults planted into a fused encoder stack: what the convergence gate must be able to catch.

Each corrupts a tile now and then, by a counter on the device, so that it also happens inside a captured step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from electra import rng
from electra.ops import Chosen, Ops
from electra.ops.dispatch import StackShape, stack_kernels

TILE = 64
EARLY_ONE_IN = 3_000
"""Sequence-layer passes in which a gradient tile is read before it is written."""
WRONG_ONE_IN = 1_000
"""Steps in which one tile of one weight's gradient is wrong."""
FAULTS = ("tile-early", "tile-wrong")


def with_fault(ops: Ops, fault: str, device: torch.device) -> Ops:
    """The ops with a fault in the encoder stacks of width 256."""
    counter = torch.zeros((), dtype=torch.int32, device=device)
    run = {"tile-early": _early, "tile-wrong": _wrong}[fault](ops, counter)
    return Ops(dict(ops.chosen) | {"encoder_stack": Chosen(run, "planted fault", fault)})


def _early(ops: Ops, counter: Tensor) -> Any:
    """In one of 3,000 passes of a sequence through a layer's backward, a tile of its gradient is another's."""
    from electra.ops.triton.encoder_stack import encoder_stack

    def run(
        x_BLD: Tensor, layers: Sequence[Any], *, spans: Any, hidden_LL: Any, rotation_2LH: None, **others: Any
    ) -> Tensor:
        (sequences, length, width), first = x_BLD.shape, layers[0]
        shape = StackShape(sequences, length, width, first.heads, len(first.up.weight), spans is not None)
        kernels = stack_kernels(shape, x_BLD.device)
        if width != 256:
            return encoder_stack(x_BLD, layers, spans=spans, hidden_LL=hidden_LL, **others, kernels=kernels)

        def backward(gradient_TD: Tensor, *arguments: Any) -> Tensor:
            counter.add_(1)
            bits = rng.mix(counter ^ 0x5EED)
            hit = rng.uniform(rng.mix(bits ^ 1)) < sequences / EARLY_ONE_IN
            row = (rng.mix(bits ^ 2).long() & 0xFFFFFFFF) % sequences * length
            rows_R = row + torch.arange(min(TILE, length), device=x_BLD.device)
            stale = gradient_TD[(rows_R - length) % len(gradient_TD), :TILE]
            tile = torch.where(hit, stale, gradient_TD[rows_R, :TILE])
            columns_C = torch.arange(TILE, device=x_BLD.device)
            return kernels.backward(gradient_TD.index_put((rows_R[:, None], columns_C), tile), *arguments)

        faulty = replace(kernels, backward=backward)
        masks = {"spans": spans, "hidden_LL": hidden_LL}
        return encoder_stack(x_BLD, layers, **masks, **others, kernels=faulty, batched_elements=0)

    return run


def _wrong(ops: Ops, counter: Tensor) -> Any:
    """In one of 1,000 steps, a tile of one layer's weight gradient is that of its neighbour."""
    healthy = ops.chosen["encoder_stack"].run

    def run(x_BLD: Tensor, layers: Sequence[Any], **others: Any) -> Tensor:
        if x_BLD.shape[2] != 256:
            return healthy(x_BLD, layers, **others)  # type: ignore[no-any-return]
        return healthy(x_BLD, [_Faulty(layers[0], counter), *layers[1:]], **others)  # type: ignore[no-any-return]

    return run


class _Faulty:
    """A layer whose MLP's first matrix gets a wrong gradient tile now and then."""

    def __init__(self, layer: Any, counter: Tensor) -> None:
        self._layer, self._counter = layer, counter
        self.heads, self.rate, self.attention_rate, self.up = layer.heads, layer.rate, layer.attention_rate, layer.up

    def weights(self) -> tuple[Tensor, ...]:
        weights = list(self._layer.weights())
        weights[6] = _WrongTile.apply(weights[6], self._counter)  # type: ignore[no-untyped-call]
        return tuple(weights)


class _WrongTile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, counter: Tensor) -> Tensor:
        ctx.counter = counter
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counter.add_(1)
        hit = ctx.counter % WRONG_ONE_IN == WRONG_ONE_IN // 2
        wrong = gradient.clone()
        wrong[:TILE, :TILE] = torch.where(hit, gradient[TILE : 2 * TILE, :TILE], gradient[:TILE, :TILE])
        return wrong, None
