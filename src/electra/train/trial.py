"""What a run would take: a step tried, its time and memory, and an estimate for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from electra.batches.loader import Batch
from electra.config.schema import Config
from electra.progress import clock, counted, scaled
from electra.train.meter import peak_memory_gib
from electra.train.step import Stepper

CHECKPOINT_BYTES = 12  # a parameter: the weight and two averages in fp32


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A first step, one more, and an evaluation, measured."""

    first_s: float
    """The first step: it compiles, captures and fetches memory."""
    step_s: float
    tokens: float
    """In a step, padding apart."""
    evaluation_s: float
    memory_gib: float
    """The most that was in use."""
    where: str
    parameters: int = 0
    memory_bytes: int | None = None
    """Of the device."""

    def seconds(self, config: Config) -> float:
        """An estimate for all steps of a run and its evaluations; saves apart."""
        steps_s, every = config.train.steps * self.step_s, config.evaluate.every
        evaluations = float(config.train.steps // every if every else 1)
        if config.evaluate.seconds:
            evaluations = min(evaluations, steps_s / config.evaluate.seconds, 0.01 * steps_s / self.evaluation_s)
        return self.first_s + steps_s + (1 + evaluations) * self.evaluation_s

    def lines(self, config: Config) -> list[str]:
        """The figures for people."""
        train, checkpoint = config.train, config.checkpoint
        of = f" of {self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes is not None else ""
        size = f"{scaled(self.parameters * CHECKPOINT_BYTES)}B"
        if train.max_minutes:
            steps = max(0, int((train.max_minutes * 60 - self.first_s) / self.step_s))
            total = f"at most {min(train.steps, steps):,} steps in {counted(train.max_minutes, 'minute')}"
        else:
            total = f"about {clock(self.seconds(config))} for {train.steps:,} steps, with evaluations"
        return [
            f"dry run: {config.preset} with {self.parameters:,} parameters on {self.where}; nothing was written",
            f"  step        {self.step_s:.3g} s, {scaled(self.tokens / self.step_s)} tokens/s; the first one took"
            f" {self.first_s:.3g} s",
            f"  evaluation  {self.evaluation_s:.3g} s",
            f"  memory      {self.memory_gib:.2f} GiB at its highest{of}",
            f"  checkpoint  {size} each, {checkpoint.keep} are kept",
            f"  time        {total}",
        ]


def measure(stepper: Stepper, batches: Iterable[Batch], evaluate: Callable[[], object], *, share: float) -> Trial:
    """Two steps without a learning rate, and an evaluation that is so large a share of a whole one."""
    seconds, tokens, where = [], 0.0, ""
    for batch in islice(batches, 2):
        began = time.monotonic()
        stepper(batch.rows, 0.0)
        tokens = stepper.read()["tokens"]
        seconds.append(time.monotonic() - began)
        where = str(batch.rows.device)
    began = time.monotonic()
    evaluate()
    return Trial(
        first_s=seconds[0],
        step_s=seconds[1],
        tokens=tokens,
        evaluation_s=(time.monotonic() - began) / share,
        memory_gib=peak_memory_gib(),
        where=where,
    )
