"""What the commands that answer rows share: lines in as they arrive, numbers out no longer than they mean."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STDIN = "standard input"
_WAITING_LINES = 512  # that are answered together at most


def waiting_lines() -> Iterator[list[str]]:
    """What has arrived on standard input, as often as something has: a line that stands alone is answered at once."""
    from electra.errors import DataError

    lines: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=_WAITING_LINES)

    def read() -> None:
        try:
            for line in sys.stdin.buffer:
                lines.put(line)
            lines.put(None)
        except OSError as error:  # handed to the consumer, who raises it
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
        texts = []
        for line in waiting:
            if line is None:
                break
            if isinstance(line, OSError):
                raise line
            number += 1
            try:
                texts.append(line.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise DataError(STDIN, f"line {number} is not valid UTF-8") from error
        yield texts


def plain_suffix(path: Path) -> str:
    """`.csv` for `rows.CSV.gz`; empty where there is none."""
    from electra.corpus.streams import COMPRESSIONS

    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def short(value: Any) -> Any:
    """Numbers of six digits: more of them mean nothing."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: short(part) for key, part in value.items()}
    return [short(part) for part in value] if isinstance(value, list) else value
