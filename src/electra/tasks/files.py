"""The text of a task's file, plain or compressed. Unreadable text is a DataError that names file and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from electra.corpus.blocks import Block, decode
from electra.corpus.encodings import Utf8Stream
from electra.corpus.streams import COMPRESSIONS, Stream
from electra.errors import DataError
from electra.fsio import open_file

MAX_BYTES = 512 << 20
MAX_LINES = 10_000_000
"""Of a task's file, which is held in memory; the largest of GLUE has 76 MB and 390,000 lines."""
_READ_BYTES = 1 << 22


def read_text(path: Path) -> str:
    """The whole file, unpacked, as text without a byte-order mark; a DataError where it is too large for memory.

    It is UTF-8, or UTF-16 that shows it.
    """
    try:
        open_file(path).close()  # a FIFO would be waited for
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from error
    stream = Stream(path, name=str(path))
    pieces: list[bytes] = []
    size = lines = 0
    try:
        text = Utf8Stream(stream, encoding=None)
        while piece := text.read(_READ_BYTES):
            pieces.append(piece)
            size, lines = size + len(piece), lines + piece.count(b"\n")
            if size > MAX_BYTES or lines > MAX_LINES:
                reason = f"holds more than {MAX_BYTES >> 20} MiB, or {MAX_LINES:,} lines, once it is unpacked"
                raise DataError(path, reason, fix="give a part of it")
    finally:
        stream.close()
    payload = b"".join(pieces)
    pieces.clear()
    return decode(Block(source=str(path), kind="paragraphs", line=1, payload=payload), option=False)


def read_lines(path: Path) -> list[str]:
    """The lines without their ends; empty ones at the end of the file are left out."""
    lines = read_text(path).split("\n")  # splitlines would also cut at U+2028 and the like, inside a text
    while lines and not lines[-1].strip("\r"):
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def find_file(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of the files that exists, as it is or compressed."""
    for folder in folders:
        for name in names:
            for suffix in ("", *COMPRESSIONS):
                if (path := folder / f"{name}{suffix}").is_file():
                    return path
    return None
