"""The numbers that follow from a step's place in the run, and a time budget turned into steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from electra.batches.source import StepRows
from electra.config.schema import DataConfig, OptimConfig, TrainConfig
from electra.train.interlude import Interlude

MEASURE_SHARE = 0.01  # of a time budget, spent before it is first turned into steps
CORRECT_SHARE = 0.0025  # of a time budget, between two estimates
MEASURE_FROM = 5  # the first steps compile and warm up
END_SHARE = 0.002  # of a time budget, for what follows the last save


def learning_rate(step: int, *, optim: OptimConfig, total: int | None) -> float:
    """Warm-up times linear decay, as the official code multiplies them; the first step (0) has rate 0.

    `total` None means that a time budget has not been turned into steps yet: no decay so far.
    """
    warmup = optim.warmup(total)
    warm = min(1.0, step / warmup) if warmup else 1.0
    end = optim.decay_steps or total
    left = 1.0 if end is None else min(1.0, max(0.0, 1.0 - step / end) / optim.decay_share)
    return optim.lr * warm * left


def progress(step: int, *, total: int | None) -> float:
    """The share of the run that is done after `step` steps; 0 while a time budget has not become steps yet."""
    return min(1.0, step / total) if total else 0.0


def takes_short(step: int, *, data: DataConfig, train: TrainConfig, elapsed_s: float) -> bool:
    """Whether the step after `step` steps takes sequences of `data.length_start`."""
    return bool(data.length_start) and _is_before(data.length_share, step, train, elapsed_s)


def makes_copies(step: int, *, data: DataConfig, train: TrainConfig, elapsed_s: float) -> bool:
    """Whether the step after `step` steps has sequences with copies; of a number of steps the last one always does."""
    last = not train.max_minutes and step >= train.steps - 1  # a small share of a short run would round to no step
    return bool(data.copies) and (last or not _is_before(1 - data.copies_share, step, train, elapsed_s))


def batch_size(step: int, *, train: TrainConfig, elapsed_s: float) -> int:
    """Sequences of the step after `step` steps."""
    sizes = (size for size, end in train.batch_sizes if _is_before(end, step, train, elapsed_s))
    return next(sizes, train.batch_size)


def step_rows(step: int, *, data: DataConfig, train: TrainConfig, elapsed_s: float) -> StepRows:
    """What rows the step after `step` steps has."""
    short, copies = (at(step, data=data, train=train, elapsed_s=elapsed_s) for at in (takes_short, makes_copies))
    return StepRows(short, batch_size(step, train=train, elapsed_s=elapsed_s), copies=copies)


def _is_before(share: float, step: int, train: TrainConfig, elapsed_s: float) -> bool:
    """Whether a share of the run is not done yet, by its time budget where it has one, otherwise by steps."""
    if train.max_minutes:
        return elapsed_s < share * train.max_minutes * 60
    return step < round(share * train.steps)


def newest_share(step: int, *, decay: float) -> float:
    """The weight of the newest weights in their running average, after `step` steps before this one.

    Until the average is as long as `decay` makes it, it is the mean of the weights after every step.
    """
    return max(1.0 - decay, 1.0 / (step + 1))


class TimeBudget:
    """A time budget as a number of steps.

    A small share of the budget shows the speed. Later estimates correct the first one, so that the last step, its
    evaluation and its save end with the budget.
    """

    def __init__(
        self, train: TrainConfig, *, elapsed: Callable[[], float], interludes: Sequence[Interlude[Any]] = ()
    ) -> None:
        """`elapsed` gives the seconds of the run so far; the budget sets aside what `interludes` will take of it."""
        self._train, self._limit, self._budget_s = train, train.steps, train.max_minutes * 60
        self._elapsed = elapsed
        self._asked = 0
        self._from: tuple[int, float] | None = None  # since when speed is measured, interludes apart
        self._next_s = 0.0  # when the next estimate is due
        self._interludes = interludes
        self._shape: Sequence[int] = ()

    def follow(self, shape: Sequence[int]) -> None:
        """Say the shape of the next step's rows: speed is measured anew where it is another one."""
        if shape != self._shape:
            self._shape, self._from, self._asked = shape, None, 0

    def due(self, step: int) -> bool:
        """Whether, `step` steps being done, it is time to ask for the `total`."""
        self._asked += 1
        now = self._elapsed()
        if step >= self._limit or now >= self._budget_s:
            return True
        return now >= self._next_s and self._asked >= MEASURE_FROM

    def total(self, step: int, known: int | None) -> int | None:
        """The run's number of steps, from the speed since the first call; at that first call, the `known` one."""
        now = self._elapsed()
        if step >= self._limit or now >= self._budget_s:
            return step
        if self._from is None:
            self._from = (step, now - self._apart_s())
            self._next_s = now + MEASURE_SHARE * self._budget_s
            return known
        self._next_s = now + CORRECT_SHARE * self._budget_s
        step_s = max(1e-9, now - self._apart_s() - self._from[1]) / (step - self._from[0])
        left_s = self._left_s(step, now)

        def seconds(more: int) -> float:
            return more * step_s + sum(one.future_s(step, more, step_s=step_s) for one in self._interludes)

        most = max(0, min(self._limit - step, int(left_s / step_s)))
        return step + bisect_right(range(1, most + 1), left_s, key=seconds)

    def _left_s(self, step: int, now: float) -> float:
        """The seconds left; those of larger batches count as fewer, as if a step took as long as its batch is large."""
        size, end_s, left_s = batch_size(step, train=self._train, elapsed_s=now), self._budget_s * (1 - END_SHARE), 0.0
        for larger, share in self._train.batch_sizes:
            until = min(share * self._budget_s, end_s)
            left_s, now = left_s + max(0.0, until - now) * size / larger, max(now, until)
        return left_s

    def _apart_s(self) -> float:
        return sum(one.took_s for one in self._interludes)
