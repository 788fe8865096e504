"""The lines of a metrics.jsonl as they are written, by this process or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from electra.fsio import open_file
from electra.train.metrics_file import FILE, parse_line

MAX_BLOCK_BYTES = 64 << 20
_TAIL_BYTES = 4096


class News(NamedTuple):
    """What a look at a metrics file gives."""

    anew: bool
    """The file does not continue what was read before: a resumed run has dropped lines. All lines are given again."""
    lines: list[dict[str, Any]]


class MetricsFollower:
    """Reads a run's metrics.jsonl: each look gives the whole lines since the one before."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._offset = 0
        self._tail = b""  # what stands before the offset: another tail is another file

    def look(self) -> News:
        """The lines that are new; none where there is no file yet."""
        try:
            with open_file(self._path) as file:
                file.seek(self._offset - len(self._tail))
                anew = self._offset > 0 and file.read(len(self._tail)) != self._tail
                if anew:
                    self._offset, self._tail = 0, b""
                file.seek(self._offset)
                block = file.read(MAX_BLOCK_BYTES)
        except FileNotFoundError:
            anew, block = self._offset > 0, b""
            self._offset, self._tail = 0, b""
        whole = block[: block.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-_TAIL_BYTES:]
        parsed = [parse_line(raw, where=self._path) for raw in whole.split(b"\n")]
        return News(anew, [line for line in parsed if line is not None])

    def look_at_all(self) -> News:
        """Like `look`, for a file that is larger than a block too."""
        anew, lines = self.look()
        while (more := self.look()).lines:
            lines = more.lines if more.anew else lines + more.lines
            anew |= more.anew
        return News(anew, lines)
