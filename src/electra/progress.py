"""Lines and progress bars on stderr: a live bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from electra.terminal import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 10.0
RATE_WINDOW_S = 60.0

_live: Progress | None = None
_quiet = False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is shown inside: for work that is a step of something else and not the user's."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def say(line: str) -> None:
    """Print one line on stderr, above the bar where one is live."""
    if _quiet:
        return
    line = visible(line)
    if _live is not None:
        _live.console.print(line, markup=False, highlight=False, soft_wrap=True)
    else:
        with contextlib.suppress(BrokenPipeError):
            print(line, file=sys.stderr, flush=True)


def scaled(value: float) -> str:
    """Three digits and a thousands letter: 950, 12.3k, 1.44M."""
    for letter in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{letter}"
        value /= 1000
    return f"{value:.3g}T"


def clock(seconds: float) -> str:
    """`1:07` or `3:02:05`."""
    minutes, s = divmod(round(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def _amount(value: float, unit: str) -> str:
    return f"{scaled(value)}B" if unit == "B" else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


class Bar:
    """What `progress` yields: call `update` with the total amount done so far, as often as you like."""

    def __init__(self, title: str, *, total: float | None, unit: str, start: float, now: Callable[[], float]) -> None:
        self.title, self.total, self.unit, self.done, self.note = title, total, unit, start, ""
        self._now = now
        self._began = self._last = now()
        self._first = start
        self._seen: deque[tuple[float, float]] = deque([(self._began, start)])
        self._show: Callable[[Bar], None] = lambda bar: None
        self._plain = True

    def update(self, done: float, note: str = "") -> None:
        self.done = done
        self.note = note or self.note
        now = self._now()
        if now - self._seen[-1][0] >= 1.0:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > RATE_WINDOW_S:
            self._seen.popleft()
        if not self._plain:
            self._show(self)
        elif now - self._last >= PLAIN_EVERY_S:
            self._last = now
            say(f"{self.title}: {self.text()}")

    def rate(self) -> float:
        """Units a second over the last minute; 0 until there is something to measure."""
        then, before = self._seen[0]
        took = self._now() - then
        return max(0.0, self.done - before) / took if took > 0 else 0.0

    def text(self) -> str:
        """Everything after the title: amount, share, rate, time left, note."""
        name = "" if self.unit in ("", "B") else f" {self.unit}"
        rate = self.rate()
        parts = [_amount(self.done, self.unit) + name]
        if self.total:
            share = min(1.0, self.done / self.total)
            parts = [f"{_amount(self.done, self.unit)}/{_amount(self.total, self.unit)}{name} ({share:.0%})"]
        if rate:
            parts.append(f"{scaled(rate)}{'B' if self.unit == 'B' else name}/s")
            if self.total and self.done < self.total:
                parts.append(f"{clock((self.total - self.done) / rate)} left")
        return visible(", ".join([*parts, *([self.note] if self.note else [])]))

    def last_line(self, *, failed: bool) -> str:
        took = self._now() - self._began
        name = "" if self.unit in ("", "B") else f" {self.unit}"
        made = max(0.0, self.done - self._first)
        rate = f", {scaled(made / took)}{'B' if self.unit == 'B' else name}/s" if took > 0 and made else ""
        note = f", {self.note}" if self.note else ""
        verb = "stopped at" if failed else "done:"
        return f"{self.title}: {verb} {_amount(self.done, self.unit)}{name} in {clock(took)}{rate}{note}"


def _terminal() -> bool:
    try:
        return not _quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # a closed stream
        return False


@contextlib.contextmanager
def progress(title: str, total: float | None = None, unit: str = "", *, start: float = 0.0) -> Iterator[Bar]:
    """A bar with rate, ETA and note; `start` is what was already done before (resumed work); unit `B` is bytes."""
    bar = Bar(title, total=total, unit=unit, start=start, now=time.monotonic)
    if not _terminal():
        failed = True
        try:
            yield bar
            failed = False
        finally:
            say(bar.last_line(failed=failed))
        return
    with _shared_display() as display:
        task = display.add_task(visible(title), total=total, completed=int(start), text="")
        bar._plain = False
        bar._show = lambda b: _draw(display, task, b)
        try:
            yield bar
        finally:
            _draw(display, task, bar)


def _draw(display: Progress, task: TaskID, bar: Bar) -> None:
    display.update(task, completed=bar.done, total=bar.total, text=bar.text())


@contextlib.contextmanager
def _shared_display() -> Iterator[Progress]:
    """One live display for nested bars: rich refuses a second."""
    global _live
    if _live is not None:
        yield _live
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        refresh_per_second=5,
    ) as display:
        _live = display
        try:
            yield display
        finally:
            _live = None
