"""A trial preparation: part of a corpus, prepared for real in a folder that is gone afterwards."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from electra.corpus.blocks import Block, Blocks
from electra.corpus.documents import Tally, documents
from electra.corpus.sources import Source, resolve
from electra.corpus.streams import COMPRESSIONS
from electra.errors import DataError
from electra.inspection.facts import Extent
from electra.progress import quiet
from electra.shards.build import prepare
from electra.shards.dataset import Prepared, open_data
from electra.shards.options import PrepareOptions

T = TypeVar("T")

MOST_FILES = 64
MOST_READ = 128 << 20
"""Stored bytes; of each of the files at least 2 MB, or a stream's buffer of 128 kB would blur the estimate."""
SLICE_BYTES = 1 << 15
SAMPLE_BYTES = 2 << 20
"""Large enough for shares to a tenth of a percent, small enough for seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Part of a corpus and what `prepare` made of it."""

    data: Prepared
    documents: list[list[str]]
    """Cleaned lines of the part's documents, held-out files not among them."""
    tally: Tally
    extent: Extent


@contextmanager
def trial(
    names: Sequence[str], *, options: PrepareOptions, vocab: Path | None = None, held_out: Sequence[str] = ()
) -> Iterator[Trial]:
    """The prepared part of the sources, as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="electra-inspect-") as place, quiet():
        folder = Path(place)
        sources = resolve(names, spool=folder / "spool", text_column=options.text_column)
        chosen = spread(sources, MOST_FILES)
        tally = Tally()
        part = _read_part(chosen, options)
        found = list(part.documents(options.text_column, tally))
        apart = []
        if held_out:
            some = spread(resolve(held_out, spool=folder / "held-out", text_column=options.text_column), MOST_FILES)
            held = _read_part(some, options).documents(options.text_column, Tally())
            apart = [_write(folder / "held-out.jsonl", held)]
        prepare(
            [_write(folder / "sample.jsonl", found)],
            out=folder / "data",
            options=replace(options, text_column="text", encoding=None),
            vocab=vocab,
            held_out=apart,
            workers=1,
        )
        extent = _extent(names, sources, chosen, part)
        yield Trial(data=open_data(folder / "data"), documents=found, tally=tally, extent=extent)


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, from all over, in order."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def left_out(names: Sequence[str], sources: Sequence[Source]) -> dict[str, int]:
    """How many files of the folders are not read, by the end of their names, the most frequent first."""
    read = {source.path.resolve() for source in sources}
    counts: Counter[str] = Counter()
    for name in names:
        for place, folders, files in os.walk(name):  # yields nothing for a file
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            paths = [Path(place) / file for file in files if not file.startswith(".")]
            counts.update(path.suffix.lower() or "no suffix" for path in paths if path.resolve() not in read)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(slots=True)
class _Part:
    """Slices from all over the sources, and how much was read for them."""

    blocks: list[Block] = field(default_factory=list)
    text_bytes: int = 0
    """Text that was read, unpacked."""
    stored_bytes: int = 0

    def documents(self, text_column: str, tally: Tally) -> Iterator[list[str]]:
        for block in self.blocks:
            yield from documents(block, text_column=text_column, tally=tally)


def _read_part(sources: Sequence[Source], options: PrepareOptions) -> _Part:
    """Every k-th slice of what is read: of each source the beginning, where all of them are too much."""
    each = MOST_READ // max(1, len(sources))
    expected = sum(min(each, source.path.stat().st_size) * _growth(source.path) for source in sources)
    stride, part, index = max(1, -(-expected // SAMPLE_BYTES)), _Part(), 0
    for source in sources:
        blocks = Blocks(source, text_column=options.text_column, encoding=options.encoding, block_bytes=SLICE_BYTES)
        for block in blocks:
            if index % stride == 0:
                part.blocks.append(block)
            index += 1
            part.text_bytes += len(block.payload)
            if blocks.position >= each:
                break
        part.stored_bytes += blocks.position
    if not part.blocks:
        raise DataError("corpus", "is empty: no text in any source")
    return part


def _growth(path: Path) -> int:
    """About how many times larger the text is than its file."""
    return 4 if path.suffix.lower() in COMPRESSIONS else 1


def _write(path: Path, some: Iterator[list[str]] | list[list[str]]) -> str:
    with open(path, "w", encoding="utf-8") as file:
        for lines in some:
            file.write(json.dumps({"text": "\n".join(lines)}) + "\n")
    return str(path)


def _extent(names: Sequence[str], sources: Sequence[Source], chosen: Sequence[Source], part: _Part) -> Extent:
    stored = sum(source.path.stat().st_size for source in sources)
    measured = sum(len(block.payload) for block in part.blocks)
    whole = len(chosen) == len(sources) and measured == part.text_bytes and part.stored_bytes >= stored
    return Extent(
        files=len(sources),
        files_read=len(chosen),
        stored_bytes=stored,
        sample_bytes=measured,
        text_bytes=measured if whole else round(part.text_bytes * stored / max(1, part.stored_bytes)),
        whole=whole,
        left_out=left_out(names, sources),
    )
