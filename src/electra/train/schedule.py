"""The learning rate, and a time budget turned into steps."""

from __future__ import annotations

import time

from electra.config.schema import OptimConfig, TrainConfig

MEASURE_SHARE = 0.05  # of a time budget, spent before it is turned into steps
MEASURE_FROM = 5  # the first steps compile and warm up
RESERVE = 0.97  # evaluation and saving take the rest


def learning_rate(step: int, *, optim: OptimConfig, total: int | None) -> float:
    """Warm-up times linear decay, as the official code multiplies them; the first step (0) has rate 0.

    `total` None means that a time budget has not been turned into steps yet: no decay so far.
    """
    warm = min(1.0, step / optim.warmup_steps) if optim.warmup_steps else 1.0
    end = optim.decay_steps or total
    left = 1.0 if end is None else max(0.0, 1.0 - step / end)
    return optim.lr * warm * left


class TimeBudget:
    """Turns a time budget into a number of steps, once, after a small share of it has shown the speed."""

    def __init__(self, train: TrainConfig, *, elapsed_s: float) -> None:
        self._limit, self._budget_s = train.steps, train.max_minutes * 60
        self._started = time.monotonic() - elapsed_s
        self._asked = 0
        self._from: tuple[int, float] | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def ready(self, step: int) -> bool:
        """Whether, `step` steps being done, it is time to ask for the `total`."""
        self._asked += 1
        if step >= self._limit:
            return True
        if self._from is None:
            return self._asked >= MEASURE_FROM
        return time.monotonic() - self._from[1] >= MEASURE_SHARE * self._budget_s

    def total(self, step: int) -> int | None:
        """The run's number of steps, from the speed since the first call; None at that first call."""
        if step >= self._limit:
            return step
        now = time.monotonic()
        if self._from is None:
            self._from = (step, now)
            return None
        steps_per_s = (step - self._from[0]) / (now - self._from[1])
        left_s = max(0.0, self._budget_s * RESERVE - self.elapsed_s)
        return min(self._limit, step + 1 + int(left_s * steps_per_s))
