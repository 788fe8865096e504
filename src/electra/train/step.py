"""One optimizer step, from the loader's rows to updated weights, without a question to the device.

On a GPU the whole step is captured in one CUDA graph; reference ops may be compiled first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from electra.batches.loader import EXTRA_COLUMNS
from electra.batches.masking import MaskedPositions, max_masked
from electra.batches.schedules import largest_rate_left
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import MaskingConfig
from electra.model.layers import set_dropout
from electra.objective.base import Objective, Outcome, require_contract
from electra.ops import Ops
from electra.ops.compile_ahead import compile_launches
from electra.train.capture import Captured, unchanged
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.schedule import progress
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
        ops: Ops,
        world: World,
        micro_batch: int,
        compiled: bool,
        captured: bool,
        separator: int | None,
        progress: Tensor | None = None,
        length: int = 0,
        dropout_share: float = 1.0,
        masking: MaskingConfig | None = None,
    ) -> None:
        """`micro_batch` counts sequences of this `length`; of shorter ones it is as many tokens.

        `progress` is filled before each step with the share of the run that is done, for objectives that follow it.
        The model has dropout during the first `dropout_share` of the run. Where `masking`'s rate falls, masked
        positions that are no longer in use are dropped now and then.
        `separator` is what `electra.batches.layout.separator_of` gives for the rows of the steps.
        """
        require_contract(objective)
        self._model, self._master, self._update, self.objective = model, master, update, objective
        self._ops, self._world, self._micro, self._separator = ops, world, micro_batch, separator
        device = master.weights.device
        self._capture, self._progress = captured, progress
        self._prepare: Callable[[Tensor], tuple[Sequences, MaskedPositions, Tensor]] = self._prepare_batch
        self._loss: Callable[[Sequences, MaskedPositions, Tensor], Outcome] = self._loss_part
        if compiled:
            self._prepare = torch.compile(self._prepare_batch, dynamic=False)
            self._loss = torch.compile(self._loss_part, dynamic=False)
        self._totals = torch.zeros(len(objective.stats) + 2, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._length, self._captured_shape = length, torch.Size()
        self._dropout_share, self._dropout_ended = dropout_share, False
        # Other shapes would be compiled anew, which takes longer than they save.
        self._masking = masking if masking and masking.rate_start > masking.rate and not compiled else None
        self._largest_rate = masking.largest_rate if masking else 1.0
        self._captured: Captured | None = None

    def place(self, step: int, *, total: int | None) -> None:
        """Say which step of how many comes next."""
        done = progress(step, total=total)
        if self._progress is not None:
            self._progress.fill_(done)
        # Once only: a time budget's estimate of the total may grow again.
        if done >= self._dropout_share and not self._dropout_ended:
            self._dropout_ended = True
            set_dropout(self._model, rate=0.0, attention_rate=0.0)
            self._capture_anew()
        # Never more of them again: where the estimate grows, some that a step would mask once more are left out.
        if self._masking is not None and (rate := largest_rate_left(done, self._masking)) < self._largest_rate:
            self._largest_rate = rate
            self._capture_anew()
        self._update.place(step)

    def __call__(self, rows: Tensor, lr: float) -> None:
        """Do one step on this process's rows of a batch."""
        self._update.lr.fill_(lr)
        if not self._capture:
            with self._world.named_when_lost():
                self._step(rows)
            return
        if self._captured is None or rows.shape != self._captured_shape:
            self._capture_anew()  # the memory of a graph for other rows is given back first
            self._captured_shape = rows.shape
            self._captured = Captured(self._step, (rows,), changed=self._changed())
            self._master.refresh()
        self._captured(rows)

    def compile_kernels(self, rows: Tensor) -> None:
        """Compile what a step on rows of this shape and an evaluation of them launch, side by side; change nothing.

        The rows have the length of an evaluation's, the step's micro-batch at most.
        """
        with unchanged(self._changed()), compile_launches(rows.device):
            self._step(rows)
            with torch.no_grad():
                batch = unpack(rows, self._separator)
                self._master.run(self.objective.evaluate, self._model, batch)
        self._master.refresh()

    def read(self) -> dict[str, float]:
        """Totals since the last reading, with `steps`, `skipped` and the last `grad_norm`; waits for the device."""
        values = self._totals.tolist()
        self._totals.zero_()
        named = dict(zip((*self.objective.stats, "steps", "skipped"), values, strict=True))
        return named | {"grad_norm": self._norm.item()}

    def wait(self) -> None:
        """Return when the device has done every step asked for."""
        self._norm.item()

    def _changed(self) -> tuple[Tensor, ...]:
        """Everything that a step changes, but for what `Master.refresh` makes anew."""
        return (*self._master.buffers, *self._update.buffers, self._totals, self._norm)

    def _capture_anew(self) -> None:
        """Give a captured step and its memory back once it has run, so that the next one is captured."""
        self.wait()
        if self._captured is not None:
            self._captured = None
            torch.cuda.empty_cache()  # a graph's memory serves no other graph

    def _step(self, rows: Tensor) -> None:
        batch, masked, counts = self._prepare(rows)
        self._world.sum_(counts)
        sums: Tensor | None = None
        length = rows.shape[1] - EXTRA_COLUMNS
        micro = self._micro * max(length, self._length) // length
        for start in range(0, len(rows), micro):
            part = slice(start, start + micro)
            outcome = self._loss(batch.part(part), MaskedPositions(*(x[part] for x in masked)), counts)
            require_contract(self.objective, outcome.sums)
            outcome.loss.backward()
            self._master.collect(first=start == 0)
            sums = outcome.sums if sums is None else sums + outcome.sums
        assert sums is not None
        self._master.reduce(self._world)
        norm = self._update()
        sums = self._world.sum_(sums)
        self._ops.add_totals(self._totals, self._norm, sums, norm=norm.norm, skipped=norm.skipped)

    def _prepare_batch(self, rows: Tensor) -> tuple[Sequences, MaskedPositions, Tensor]:
        batch = unpack(rows, self._separator, self._ops.split_rows)
        masked = self.objective.choose_masked(batch)
        if self._masking is not None:
            masked = masked.first(max_masked(batch.ids_BL.shape[1], self._largest_rate))
        return batch, masked, self.objective.counts(batch, masked)

    def _loss_part(self, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self._master.run(self.objective.loss, self._model, batch, masked, counts)
