"""Fused gradients beside the reference's, step by step on the device, and the same step replayed bit by bit.

Both networks read the same weights, the same masks and the same samples; what differs is the ops. Errors are taken by
tiles of 64 x 64 of each weight's gradient and by sequences of the gradient at each encoder's input, so that one wrong
tile of one sequence in one layer is seen among millions. Nothing waits for the device between steps.

Shapes: N parameters, T tiles, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from electra.batches.layout import Specials, separator_of
from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config
from electra.model.electra import Electra, build_model
from electra.model.layers import with_ops
from electra.objective.generators import Generator, Samples
from electra.objective.registry import Resources, build_objective
from electra.objective.rtd import ReplacedTokenDetection
from electra.ops import Ops
from electra.ops.dispatch import select
from electra.train.capture import Captured
from electra.train.execution import Execution
from electra.train.optim import Update
from electra.train.state import Master

TILE = 64


@dataclass(frozen=True, slots=True)
class SharedSamples:
    """A generator whose samples are written to `samples_M`, or replaced by what is there."""

    generator: Generator
    samples_M: Tensor
    writes: bool

    @property
    def learns(self) -> bool:
        return self.generator.learns

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        samples = self.generator.sample(model, batch, masked, dropout=dropout, logits=logits)
        if self.writes:
            self.samples_M.copy_(samples.sampled_M)
        return samples._replace(sampled_M=self.samples_M)


class Side:
    """One network with its objective: computes a flat gradient, and the gradients at its encoders' inputs."""

    def __init__(self, model: nn.Module, objective: ReplacedTokenDetection, ops: Ops, separator: int | None) -> None:
        self.model, self.objective, self._ops, self._separator = model, objective, ops, separator
        self.inputs: dict[str, Tensor] = {}
        for name in ("generator", "discriminator"):
            getattr(model, name).register_forward_pre_hook(self._watch(name))

    def backward(self, rows: Tensor) -> None:
        """Leave the loss's gradients in the parameters."""
        batch = unpack(rows, self._separator, self._ops.split_rows)
        masked = self.objective.choose_masked(batch)
        counts = self.objective.counts(batch, masked)
        self.objective.loss(self.model, batch, masked, counts).loss.backward()

    def _watch(self, name: str) -> Callable[[nn.Module, Any], None]:
        def keep(gradient: Tensor) -> None:
            self.inputs[name] = gradient.float()

        def hook(module: nn.Module, arguments: Any) -> None:
            arguments[0].register_hook(keep)

        return hook


class GradientCheck:
    """Trains by the fused gradient and measures it against the reference's at every step."""

    def __init__(self, config: Config, specials: Specials, execution: Execution, rows: Tensor) -> None:
        device, dtype = execution.device, execution.dtype
        plain = select("plain", device=device, dtype=dtype)
        fused_model = build_model(config, ops=execution.ops, dtype=dtype)
        self.master = Master(fused_model, compute=dtype, device=device)
        plain_model = with_ops(fused_model, plain, dtype)
        for mine, other in zip(fused_model.parameters(), plain_model.parameters(), strict=True):
            other.data = mine.data  # the same weights, also after each step
        samples_M: Tensor | None = None
        sides = []
        for model, ops in ((fused_model, execution.ops), (plain_model, plain)):
            objective = build_objective(config, Resources(specials, ops, device=device))
            assert isinstance(objective, ReplacedTokenDetection)
            if samples_M is None:
                batch = unpack(rows)
                samples_M = torch.zeros(objective.choose_masked(batch).used_BM.numel(), dtype=torch.long, device=device)
            shared = SharedSamples(objective.generator, samples_M, writes=ops is execution.ops)
            objective = replace(objective, generator=shared)
            sides.append(Side(model, objective, ops, separator_of(config.data, specials)))
        self.fused, self.plain = sides
        self._plain_gradient = torch.zeros_like(self.master.gradient)
        self._update = Update(self.master, config.optim, ops=execution.ops)
        self._update.lr.fill_(config.optim.lr)
        self._tiles_N, self._parameter_T = _tile_numbers(self.master, device)
        self.worst_tile = torch.zeros((), device=device)
        self.worst_sequence = torch.zeros((), device=device)
        self.mean_tile = torch.zeros((), dtype=torch.float64, device=device)
        self.steps = 0
        self._energy_P = torch.zeros(len(self.master.names), dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        running = (*self.figures, self._energy_P, self._count)
        changed = (self.master.weights, self.master.average, self.master.square, *running)
        self._step = recorded(self._compare_and_step, rows, changed=changed)
        self.master.refresh()

    @property
    def figures(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.worst_tile, self.worst_sequence, self.mean_tile

    def step(self, rows: Tensor) -> None:
        """One optimizer step by the fused gradient, compared with the reference's."""
        self._step(rows)
        self.steps += 1

    def read(self) -> dict[str, float]:
        """The largest errors so far, relative; waits for the device."""
        return {
            "worst tile": self.worst_tile.item(),
            "worst sequence": self.worst_sequence.item(),
            "mean tile": self.mean_tile.item() / max(1, self.steps),
        }

    def replay(self, rows: Tensor, count: int) -> tuple[int, int]:
        """How many of `count` replays of one step's gradient differ in any bit, and how many elements are compared.

        The token table is left out: its gradient is summed by atomic additions, in any order.
        """
        promised = torch.cat(
            [
                torch.full_like(view, not name.endswith("token.weight"), dtype=torch.bool).flatten()
                for name, view in self.master.tensors()["model"].items()
            ]
        )
        size = len(promised)
        first = torch.zeros_like(self.master.gradient)
        differing = torch.zeros((), dtype=torch.int64, device=first.device)
        again = torch.zeros((), dtype=torch.bool, device=first.device)

        def work(rows: Tensor) -> None:
            self.fused.backward(rows)
            self.master.collect(first=True)
            fresh = self.master.gradient
            other = (fresh[:size].view(torch.int32) != first[:size].view(torch.int32)) & promised
            differing.add_((other.any() & again).long())
            first.copy_(torch.where(again, first, fresh))
            again.fill_(True)

        replay = recorded(work, rows, changed=(first, differing, again))
        for _ in range(count):
            replay(rows)
        return int(differing.item()), int(promised.sum().item())

    def _compare_and_step(self, rows: Tensor) -> None:
        self.fused.backward(rows)
        self.master.collect(first=True)
        self.plain.backward(rows)
        flat = [p.grad.float().flatten() for p in self._ordered(self.plain.model)]  # type: ignore[union-attr]
        for parameter in self.plain.model.parameters():
            parameter.grad = None
        torch.cat(flat, out=self._plain_gradient[: sum(len(part) for part in flat)])
        tiles = len(self._parameter_T)
        wrong_T = self._sums((self.master.gradient - self._plain_gradient).square(), tiles)
        right_T = self._sums(self._plain_gradient.square(), tiles)
        zeros_P = torch.zeros(len(self.master.names), device=wrong_T.device)
        counts_P = zeros_P.index_add(0, self._parameter_T, torch.ones_like(right_T))
        self._energy_P.add_(zeros_P.index_add(0, self._parameter_T, right_T) / counts_P)
        self._count.add_(1)
        typical_P = (self._energy_P / self._count).float()
        # Relative to its own norm, or to the parameter's typical tile in all steps so far: small ones are noise.
        error_T = (wrong_T / torch.maximum(right_T, typical_P[self._parameter_T].clamp(min=1e-30))).sqrt()
        self.worst_tile.copy_(torch.maximum(self.worst_tile, error_T.max()))
        self.mean_tile.add_(error_T.mean().double())
        for name, mine_BLE in self.fused.inputs.items():
            other_BLE = self.plain.inputs[name]
            wrong_B = (mine_BLE - other_BLE).square().sum((1, 2))
            right_B = other_BLE.square().sum((1, 2))
            error_B = (wrong_B / torch.maximum(right_B, right_B.mean())).sqrt()
            self.worst_sequence.copy_(torch.maximum(self.worst_sequence, error_B.max()))
        self._update()

    def _sums(self, values_N: Tensor, tiles: int) -> Tensor:
        return torch.zeros(tiles, device=values_N.device).index_add_(0, self._tiles_N, values_N[: len(self._tiles_N)])

    def _ordered(self, model: nn.Module) -> list[nn.Parameter]:
        """Parameters in the order of the flat buffers."""
        named = dict(model.named_parameters())
        return [named[name] for name in self.master.names]


def recorded(work: Callable[[Tensor], None], rows: Tensor, *, changed: tuple[Tensor, ...]) -> Callable[[Tensor], None]:
    """`work` as a CUDA graph, or as it is on a CPU."""
    return Captured(work, (rows,), changed=changed) if rows.device.type == "cuda" else work


def _tile_numbers(master: Master, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N,) the tile of each parameter element, and (T,) the parameter of each tile."""
    numbers, owners, first = [], [], 0
    for place, view in enumerate(master.tensors()["model"].values()):
        rows, columns = (view.shape[0], view.shape[1]) if view.dim() == 2 else (1, view.numel())
        across = -(-columns // TILE)
        row_R, column_C = torch.arange(rows, device=device), torch.arange(columns, device=device)
        numbers.append((first + (row_R // TILE)[:, None] * across + (column_C // TILE)[None, :]).flatten())
        count = -(-rows // TILE) * across
        owners += [place] * count
        first += count
    return torch.cat(numbers), torch.tensor(owners, device=device)
