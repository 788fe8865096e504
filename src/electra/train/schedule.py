"""The learning rate, and a time budget turned into steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from electra.config.schema import OptimConfig, TrainConfig

Timed = TypeVar("Timed")

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


@dataclass(slots=True)
class _Interlude:
    """Something that steps wait for, every so many of them and after the last one."""

    every: int
    """0: only after the last."""
    last_s: float = 0.0

    def seconds(self, step: int, more: int) -> float:
        """What it takes of a run that does so many steps more, after step `step` itself and after later ones."""
        before_the_end = (step + more - 1) // self.every - (step - 1) // self.every if self.every else 0
        return self.last_s * (before_the_end + 1)


class TimeBudget:
    """A time budget as a number of steps.

    A small share of the budget shows the speed. Later estimates correct the first one, so that the last step, its
    evaluation and its save end with the budget.
    """

    def __init__(self, train: TrainConfig, *, elapsed: Callable[[], float]) -> None:
        """`elapsed` gives the seconds of the run so far."""
        self._limit, self._budget_s = train.steps, train.max_minutes * 60
        self._elapsed = elapsed
        self._asked = 0
        self._from: tuple[int, float] | None = None  # since when speed is measured, interludes apart
        self._next_s = 0.0  # when the next estimate is due
        self._interludes: list[_Interlude] = []
        self._apart_s = 0.0  # what interludes have taken

    def timed(self, act: Callable[[Timed], None], *, every: int) -> Callable[[Timed], None]:
        """`act`, timed: the budget sets aside what it takes every so many steps and after the last one."""
        interlude = _Interlude(every)
        self._interludes.append(interlude)

        def acting(argument: Timed) -> None:
            began = self._elapsed()
            act(argument)
            interlude.last_s = self._elapsed() - began
            self._apart_s += interlude.last_s

        return acting

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
            self._from = (step, now - self._apart_s)
            self._next_s = now + MEASURE_SHARE * self._budget_s
            return known
        self._next_s = now + CORRECT_SHARE * self._budget_s
        step_s = max(1e-9, now - self._apart_s - self._from[1]) / (step - self._from[0])
        left_s = self._budget_s * (1 - END_SHARE) - now

        def seconds(more: int) -> float:
            return more * step_s + sum(one.seconds(step, more) for one in self._interludes)

        most = max(0, min(self._limit - step, int(left_s / step_s)))
        return step + bisect_right(range(1, most + 1), left_s, key=seconds)
