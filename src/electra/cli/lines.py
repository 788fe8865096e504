"""Lines from standard input as they arrive, and numbers without meaningless digits."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

STDIN = "standard input"
_WAITING_LINES = 512  # handled together at most


def waiting_lines() -> Iterator[list[str]]:
    """The lines that have arrived on standard input, as often as some have: a single line does not wait for more."""
    from electra.errors import DataError

    lines: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=_WAITING_LINES)

    def read() -> None:
        try:
            for line in sys.stdin.buffer:
                lines.put(line)
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
