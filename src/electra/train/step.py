"""One optimizer step, from the loader's rows to updated weights, without a question to the device.

On a GPU the whole step is captured in one CUDA graph; what fused kernels leave over is compiled first where that pays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from electra.batches.masking import Slots
from electra.batches.sequences import Sequences, lengths_and_segments, unpack
from electra.kernels import one_launch
from electra.objective.base import Objective, Outcome
from electra.train.capture import Captured
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master


class Stepper:
    """Runs steps and keeps running totals on the device until they are asked for."""

    def __init__(
        self,
        model: nn.Module,
        master: Master,
        update: Update,
        objective: Objective,
        *,
        world: World,
        micro_batch: int,
        compiled: bool,
        captured: bool = True,
        separator: int | None,
    ) -> None:
        """`separator` is what `electra.batches.layout.separator_of` gives for the rows of the steps."""
        self._model, self._master, self._update, self.objective = model, master, update, objective
        self._world, self._micro, self._separator = world, micro_batch, separator
        device = master.weights.device
        self._capture = captured and device.type == "cuda"
        self._plan: Callable[[Tensor], tuple[Sequences, Slots, Tensor]] = self._plan_batch
        self._loss: Callable[[Sequences, Slots, Tensor], Outcome] = self._loss_part
        if compiled:
            self._plan = torch.compile(self._plan_batch, dynamic=False)
            self._loss = torch.compile(self._loss_part, dynamic=False)
        self._totals = torch.zeros(len(objective.stats) + 2, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._one = torch.ones(1, device=device)
        self._captured: Captured | None = None

    def __call__(self, rows: Tensor, lr: float) -> None:
        """Do one step on this process's rows of a batch."""
        self._update.lr.fill_(lr)
        if not self._capture:
            self._step(rows)
            return
        if self._captured is None:
            master = self._master
            changed = (master.weights, master.average, master.square, self._totals, self._norm)
            self._captured = Captured(self._step, (rows,), changed=changed)
            master.refresh()
        self._captured(rows)

    def read(self) -> dict[str, float]:
        """Totals since the last reading, with `steps`, `skipped` and the last `grad_norm`; waits for the device."""
        values = self._totals.tolist()
        self._totals.zero_()
        named = dict(zip((*self.objective.stats, "steps", "skipped"), values, strict=True))
        return named | {"grad_norm": self._norm.item()}

    def wait(self) -> None:
        """Return when the device has done every step asked for."""
        self._norm.item()

    def _step(self, rows: Tensor) -> None:
        # An objective that fails beside the stream in use must not leave us there.
        with torch.cuda.stream(torch.cuda.current_stream(rows.device)) if rows.is_cuda else nullcontext():
            self._work(rows)

    def _work(self, rows: Tensor) -> None:
        batch, slots, counts = self._plan(rows)
        self._world.sum_(counts)
        sums: Tensor | None = None
        for start in range(0, len(rows), self._micro):
            part = slice(start, start + self._micro)
            texts, places = batch.part(part), Slots(*(x[part] for x in slots))
            outcome = self._loss(texts, places, counts)
            outcome.loss.backward()
            self._master.collect(first=start == 0)
            sums = outcome.sums if sums is None else sums + outcome.sums
        assert sums is not None
        self._world.sum_(self._master.gradient)
        norm, skipped = self._update()
        self._count(self._world.sum_(sums), norm, skipped)

    def _count(self, sums: Tensor, norm: Tensor, skipped: Tensor) -> None:
        if one_launch(sums):
            from electra.kernels.verdict import tally

            tally(self._totals, self._norm, sums, norm=norm, skipped=skipped)
            return
        sums = torch.nan_to_num(sums, 0.0, 0.0, 0.0) * (1.0 - skipped)
        self._norm.copy_(norm)
        self._totals += torch.cat((sums, self._one, skipped[None]))

    def _plan_batch(self, rows: Tensor) -> tuple[Sequences, Slots, Tensor]:
        measure = lengths_and_segments
        if one_launch(rows):
            from electra.kernels.slots import lengths_and_segments as measure
        batch = unpack(rows, self._separator, measure)
        slots = self.objective.plan(batch)
        return batch, slots, self.objective.counts(batch, slots)

    def _loss_part(self, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        return self.objective.loss(self._model, batch, slots, counts)
