"""What a campaign counted, as a table; and the clock that ends what hangs."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType


class Hang(BaseException):
    """Something that was still running when its time was up."""


@dataclass(slots=True)
class Report:
    """What became of the attacks, by what was attacked."""

    outcomes: tuple[str, ...]
    bad: tuple[str, ...]
    """Outcomes of which there must be none."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def total(self) -> Counter[str]:
        return sum(self.counts.values(), Counter())

    def lines(self) -> list[str]:
        """The failures, the table and the sum."""
        table = [f"{'':<36}" + "".join(f"{outcome:>11}" for outcome in self.outcomes)]
        for name, counts in [*sorted(self.counts.items()), ("all", self.total)]:
            table.append(f"{name:<36}" + "".join(f"{counts[outcome]:>11,}" for outcome in self.outcomes))
        cost = f"{self.total.total():,} in {self.seconds:.0f} s, peak memory {self.peak_bytes / 2**30:.1f} GiB"
        return [*self.failures, *table, cost]


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise `Hang` in the block when it takes longer."""

    def over(number: int, frame: FrameType | None) -> None:
        raise Hang(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
