"""What the steps of a run wait for now and then: an evaluation, a save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from electra.train.parallel import World

Argument = TypeVar("Argument")

COST_SHARE = 0.01  # of the run's time, that an interlude by time takes at most
AFTER_COMPILING = 0.1  # of what the first one took, where it also compiled: 2.6 s on a bare H200, later ones 0.15 s


class Interval(Protocol):
    """How often: the keys of `evaluate` and of `checkpoint`."""

    @property
    def every(self) -> int: ...

    @property
    def seconds(self) -> float: ...


class Interlude(Generic[Argument]):
    """An act between steps that knows when it is due and what it takes.

    It is due every `every` steps; 0 means only after the last one. With `seconds` it also waits that long, and longer
    where it is expensive: it takes at most `COST_SHARE` of the time. Of one that `compiles` at first, later ones are
    expected to be cheaper until one has shown what it takes.
    """

    def __init__(
        self,
        act: Callable[[Argument], None],
        interval: Interval,
        *,
        elapsed: Callable[[], float],
        last_s: Callable[[], float] = lambda: 0.0,
        compiles: bool = False,
    ) -> None:
        """`elapsed` gives the seconds of the run so far, `last_s` those of the one at the end, if it takes longer."""
        self._act, self._every, self._seconds = act, interval.every, interval.seconds
        self._elapsed, self._at_end_s = elapsed, last_s
        self._ended_s = elapsed()
        self._last_s = 0.0
        self._usual_share = AFTER_COMPILING if compiles else 1.0  # of the last one's time, what the next will take
        self.took_s = 0.0
        """All that it has taken."""

    def __call__(self, argument: Argument) -> None:
        began = self._elapsed()
        self._act(argument)
        self._ended_s = self._elapsed()
        if self.took_s:
            self._usual_share = 1.0
        self._last_s = self._ended_s - began
        self.took_s += self._last_s

    def due(self, step: int, world: World) -> bool:
        """Whether it is due after step `step`, on all processes alike."""
        if not self._every or step % self._every:
            return False
        return not self._seconds or world.any(self._elapsed() - self._ended_s >= self._wait_s)

    def future_s(self, step: int, more: int, *, step_s: float) -> float:
        """What it will take in a run that does so many steps more: after step `step` itself, later, and at the end."""
        at_end_s = max(self._last_s, self._at_end_s())
        if not self._every:
            return at_end_s
        wait = self._wait_s / step_s if self._seconds else 0.0
        over = (self._elapsed() - self._ended_s) / step_s  # steps of the wait that are over
        first = self._every * math.ceil((step + max(0.0, wait - over)) / self._every)
        apart = self._every * max(1, math.ceil(wait / self._every))
        before_the_end = max(0, (step + more - 1 - first) // apart + 1)
        return self._last_s * before_the_end + at_end_s

    @property
    def _wait_s(self) -> float:
        return max(self._seconds, self._usual_share * self._last_s / COST_SHARE)
