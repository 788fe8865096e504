"""Lines and progress bars on stderr: a live bar on a terminal, a plain line every ten seconds elsewhere.

`--quiet` leaves warnings, `--verbose` adds details, `--log-file` gets everything, whatever the console shows.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from electra.terminal import visible

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

PLAIN_EVERY_S = 10.0
RATE_WINDOW_S = 60.0

BAR_WIDTH, SHORTEST_BAR = 30, 8
WARNING = "warning:"

_live: Progress | None = None
_silent = False


@dataclass(slots=True)
class _Output:
    """What a command shows."""

    quiet: bool = False
    verbose: bool = False
    log: TextIO | None = None


_output = _Output()


@contextlib.contextmanager
def output() -> Iterator[None]:
    """What `show_less`, `show_more` and `log_to` choose inside ends with the block."""
    global _output
    before, _output = _output, _Output()
    try:
        yield
    finally:
        if _output.log is not None:
            _output.log.close()
        _output = before


def show_less() -> None:
    """Show warnings and errors only, without bars."""
    _output.quiet = True


def show_more() -> None:
    """Show details too."""
    _output.verbose = True


def log_to(path: Path) -> None:
    """Append everything that is said, with the time, to a file; OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _output.log = open(path, "a", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115 (until the end)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is shown inside: for work that is a step of something else and not the user's."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before


def say(line: str) -> None:
    """Print one line on stderr, above the bar where one is live."""
    if _silent:
        return
    log(line)
    if not _output.quiet or line.lstrip().startswith(WARNING):
        _print(line)


def detail(line: str) -> None:
    """One line for `--verbose` and the log file."""
    if _silent:
        return
    log(line)
    if _output.verbose and not _output.quiet:
        _print(line)


def log(line: str) -> None:
    """Put one line into the log file only, where there is one."""
    if _output.log is None:
        return
    try:
        _output.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {visible(line)}\n")
    except OSError as error:  # a full disk ends the log, not the work
        _output.log = None
        _print(f"{WARNING} the log file ends here: {error.strerror or error}")


def _print(line: str) -> None:
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


def counted(number: float | str, noun: str) -> str:
    """`1 minute`, `2.5 minutes`, `1,200 rows`: a number and what it counts, in the plural unless it is one."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}" if isinstance(number, float) else number
    return f"{shown} {noun}{'s' * (shown != '1')}"


def clock(seconds: float) -> str:
    """`1:07` or `3:02:05`."""
    minutes, s = divmod(round(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def _amount(value: float, unit: str) -> str:
    return f"{scaled(value)}B" if unit == "B" else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


NOTE_GAP = "  "
"""Between the parts of a note, which are dropped one by one where a terminal is too small for all."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A part of a bar's text."""

    rank: int
    text: str
    note: bool = False


def _joined(fields: list[_Field]) -> str:
    figures = ", ".join(field.text for field in fields if not field.note)
    notes = NOTE_GAP.join(field.text for field in fields if field.note)
    return f"{figures}, {notes}" if notes else figures


def _fitting(fields: list[_Field], width: int) -> list[_Field]:
    """The fields of the lowest ranks that fit together, in their order; the first one always."""
    for rank in sorted({field.rank for field in fields}, reverse=True):
        if len(_joined(fields)) <= width:
            break
        fields = [field for field in fields if field.rank < rank or field.rank == 0]
    return fields


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
        self._show(self)
        if now - self._last >= PLAIN_EVERY_S:
            self._last = now
            (say if self._plain else log)(f"{self.title}: {self.text()}")

    def rate(self) -> float:
        """Units a second over the last minute; 0 until there is something to measure."""
        then, before = self._seen[0]
        took = self._now() - then
        return max(0.0, self.done - before) / took if took > 0 else 0.0

    def text(self, width: int | None = None) -> str:
        """Everything after the title: amount, share, rate, time left, note; of it what fits into `width` columns."""
        fields = self._fields()
        if width is not None:
            fields = _fitting(fields, width)
        return _joined(fields)

    def elapsed(self) -> str:
        """How long it has been shown."""
        return clock(self._now() - self._began)

    def _fields(self) -> list[_Field]:
        """The parts of the text in their order, each with its rank: those of a high rank are dropped first."""
        rate = self.rate()
        amount = _amount(self.done, self.unit) + self._name
        if self.total:
            share = min(1.0, self.done / self.total)
            amount = f"{_amount(self.done, self.unit)}/{_amount(self.total, self.unit)}{self._name} ({share:.0%})"
        fields = [_Field(0, amount)]
        if rate:
            fields.append(_Field(5, self._per_second(rate)))
            if self.total and self.done < self.total:
                fields.append(_Field(1, f"{clock((self.total - self.done) / rate)} left"))
        notes = visible(self.note).split(NOTE_GAP) if self.note else []
        return fields + [_Field(2 + number + (number > 2), note, note=True) for number, note in enumerate(notes)]

    def last_line(self, *, failed: bool) -> str:
        took = self._now() - self._began
        made = max(0.0, self.done - self._first)
        rate = f", {self._per_second(made / took)}" if took > 0 and made else ""
        note = f", {self.note}" if self.note else ""
        verb = "stopped at" if failed else "done:"
        return f"{self.title}: {verb} {_amount(self.done, self.unit)}{self._name} in {clock(took)}{rate}{note}"

    @property
    def _name(self) -> str:
        """The unit behind an amount; bytes have it in the amount."""
        return "" if self.unit in ("", "B") else f" {self.unit}"

    def _per_second(self, rate: float) -> str:
        return f"{scaled(rate)}{'B' if self.unit == 'B' else self._name}/s"


def _terminal() -> bool:
    try:
        return not (_silent or _output.quiet) and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # a closed stream
        return False


@contextlib.contextmanager
def progress(title: str, total: float | None = None, unit: str = "", *, start: float = 0.0) -> Iterator[Bar]:
    """A bar with rate, ETA and note; `start` is what was already done before (resumed work); unit `B` is bytes."""
    bar = Bar(title, total=total, unit=unit, start=start, now=time.monotonic)
    with contextlib.ExitStack() as stack:
        if _terminal():
            display = stack.enter_context(_shared_display())
            task = display.add_task(title, total=total, completed=int(start), bar=bar)
            bar._plain = False
            bar._show = lambda b: display.update(task, completed=b.done, total=b.total)
        failed = True
        try:
            yield bar
            failed = False
        finally:
            (say if bar._plain else log)(bar.last_line(failed=failed))
            bar._show(bar)


def bar_line(bar: Bar, width: int) -> Text:
    """Title, bar, text and time of a bar in one line of so many columns; the bar takes what the text leaves."""
    from rich.text import Text

    title = visible(bar.title)
    text = bar.text(width - len(title) - 1)
    room = width - len(title) - len(text) - 2
    line = Text(title, no_wrap=True, overflow="ellipsis")
    if room > SHORTEST_BAR and bar.total:
        cells = min(BAR_WIDTH, room - 1)
        done = int(cells * min(1.0, bar.done / bar.total))
        line.append(" ").append("━" * done, "bar.complete").append("━" * (cells - done), "bar.back")
        room -= cells + 1
    line.append(f" {text}")
    if room > len(bar.elapsed()):
        line.append(f" {bar.elapsed()}", "progress.elapsed")
    return line


@contextlib.contextmanager
def _shared_display() -> Iterator[Progress]:
    """One live display for nested bars: rich refuses a second."""
    global _live
    if _live is not None:
        yield _live
        return
    from rich.console import Console, RenderableType
    from rich.progress import Progress

    class Display(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks:
                yield bar_line(task.fields["bar"], self.console.width)

    with Display(console=Console(stderr=True), refresh_per_second=5) as display:
        _live = display
        try:
            yield display
        finally:
            _live = None
