"""Lines from standard input as they arrive, and numbers without meaningless digits."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import click

from electra.errors import DataError
from electra.terminal import visible

STDIN = "standard input"
MAX_LINE_BYTES = 1 << 20
_WAITING_LINES = 512  # handled together at most


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print on standard output; what would steer the terminal is shown instead."""
    click.echo(visible(text), err=err, nl=nl)


def waiting_lines() -> Iterator[list[str]]:
    """The lines that have arrived on standard input, as often as some have: a single line does not wait for more."""
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=_WAITING_LINES)

    def read() -> None:
        try:
            while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
                lines.put(line)
                if len(line) > MAX_LINE_BYTES:
                    return
            lines.put(None)
        except OSError as error:  # the consumer raises it
            lines.put(error)

    threading.Thread(target=read, name="electra-stdin", daemon=True).start()
    number, more = 0, True
    while more:
        waiting = [lines.get()]
        while isinstance(waiting[-1], bytes) and len(waiting) < _WAITING_LINES:
            try:
                waiting.append(lines.get_nowait())
            except queue.Empty:
                break
        more = waiting[-1] is not None
        decoded = []
        for line in waiting:
            if line is None:
                break
            if isinstance(line, OSError):
                raise line
            number += 1
            if len(line) > MAX_LINE_BYTES:
                reason = f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise DataError(STDIN, reason, fix="break it into lines, or give a file")
            try:
                decoded.append(line.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise DataError(STDIN, f"line {number} is not valid UTF-8") from error
        yield decoded


def short(value: Any) -> Any:
    """The value with its numbers rounded to six digits; more mean nothing."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: short(part) for key, part in value.items()}
    return [short(part) for part in value] if isinstance(value, list) else value
