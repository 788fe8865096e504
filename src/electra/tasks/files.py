"""The text of a task's file, plain or compressed. Unreadable text is a DataError that names file and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from electra.corpus.blocks import Block, decode
from electra.corpus.streams import COMPRESSIONS, Stream

_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 22


def read_text(path: Path) -> str:
    """The whole file as text, without a byte-order mark."""
    stream = Stream(path, name=str(path))
    try:
        payload = b"".join(iter(lambda: stream.read(_READ_BYTES), b""))
    finally:
        stream.close()
    return decode(Block(source=str(path), kind="paragraphs", line=1, payload=payload.removeprefix(_BOM)))


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


def plain_suffix(path: Path) -> str:
    """The suffix without that of a compression, in lower case: `.csv` for `rows.CSV.gz`; empty where there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
