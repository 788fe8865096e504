"""An evenly spread, bounded part of a corpus, the same for the same text; and the characters of all of it."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from electra.corpus.blocks import Block, Blocks, decode
from electra.corpus.documents import Tally, documents
from electra.corpus.sources import Source
from electra.progress import progress

SAMPLE_BYTES = 64 << 20
SLICE_BYTES = 1 << 18

_ASCII = bytes(range(128))
_CODE_POINTS = 0x110000
_JAMO = range(0x1161, 0x11C3)
"""Vowels and final consonants of Hangul, which NFC joins to what stands before them though they are no marks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Slices of the corpus, and all of its characters."""

    blocks: list[Block]
    sha256: str
    """Of the slices' content and of the counts of characters."""
    characters: dict[str, int] = field(repr=False)
    """How often each character occurs, in NFC, in the whole corpus."""

    def lines(self, *, text_column: str, limit: int = SAMPLE_BYTES) -> Iterator[str]:
        """Cleaned lines of the slices, or of every k-th of them where `limit` bytes hold no more."""
        size = sum(len(block.payload) for block in self.blocks)
        stride = 1
        while size > limit * stride and stride < len(self.blocks):
            stride *= 2
        for block in self.blocks[::stride]:
            for document in documents(block, text_column=text_column, tally=Tally()):
                yield from document


def sample(
    sources: Sequence[Source], *, text_column: str, encoding: str | None = None, limit: int = SAMPLE_BYTES
) -> Sample:
    """Every k-th slice of the text, k being the power of two that keeps between half the limit and the limit."""
    kept: list[tuple[int, Block]] = []
    size, index, stride = 0, 0, 1
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    characters = _Characters(text_column)
    with progress("Sampling the corpus", total=total, unit="B") as bar:
        for source in sources:
            blocks = Blocks(source, text_column=text_column, encoding=encoding, block_bytes=SLICE_BYTES)
            for block in blocks:
                characters.add(block)
                if index % stride == 0:
                    kept.append((index, block))
                    size += len(block.payload)
                while size > limit and len(kept) > 1:
                    stride *= 2
                    kept = [(at, block) for at, block in kept if at % stride == 0]
                    size = sum(len(block.payload) for _, block in kept)
                index += 1
                bar.update(done + blocks.position)
            done += source.path.stat().st_size
    digest = hashlib.sha256()
    for _, block in kept:
        digest.update(len(block.payload).to_bytes(8, "little"))
        digest.update(block.payload)
    counts = characters.counts()
    digest.update(repr(counts).encode())
    return Sample([block for _, block in kept], digest.hexdigest(), counts)


class _Characters:
    """Counts the characters of blocks."""

    def __init__(self, text_column: str) -> None:
        self._column = text_column
        self._counts = np.zeros(_CODE_POINTS, np.int64)

    def add(self, block: Block) -> None:
        if block.kind == "json":  # escapes hide characters
            lines = documents(block, text_column=self._column, tally=Tally())
            self._add("\n".join(line for document in lines for line in document))
            return
        text = decode(block)
        rest = block.payload.translate(None, _ASCII).decode()  # little, in most alphabets, and fast to come by
        if any(unicodedata.combining(char) or ord(char) in _JAMO for char in set(rest)):
            self._add(unicodedata.normalize("NFC", text))
        else:
            self._add(unicodedata.normalize("NFC", rest))
            self._counts[:128] += np.bincount(np.frombuffer(block.payload, np.uint8), minlength=256)[:128]

    def _add(self, text: str) -> None:
        found: Any = np.bincount(np.frombuffer(text.encode("utf-32-le", "replace"), "<u4"))
        self._counts[: len(found)] += found

    def counts(self) -> dict[str, int]:
        return {chr(code): int(self._counts[code]) for code in np.flatnonzero(self._counts)}
