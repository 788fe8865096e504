"""A corpus file as blocks of a few megabytes, cut between documents: the unit of parallel and resumable work."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from electra.corpus.encodings import Utf8Stream, not_utf8
from electra.corpus.separators import csv_separator
from electra.corpus.sources import HUB, PAGES, Source
from electra.corpus.streams import COMPRESSIONS, Stream
from electra.errors import ConfigError, DataError, pip_install
from electra.fsio import sha256_file

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 20
"""A longer line is refused: no text has one, and its memory could not be bounded."""

_PARQUET_ROWS = 64

Kind = Literal["paragraphs", "json", "rows", "html", "markdown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Whole documents out of one file, as bytes, with what an error message needs to find them again."""

    source: str
    """Path of the file, as the user gave it."""
    kind: Kind
    """paragraphs: lines, a blank one between documents; json: one document a line; rows: one between NULs; html and
    markdown: one document."""
    line: int
    """Number of the first line (or row) in the file."""
    payload: bytes


class Blocks:
    """Iterate over the blocks of a file; `position` follows in stored bytes, `sha256` is final at the end."""

    def __init__(
        self, source: Source, *, text_column: str, encoding: str | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """`encoding` is that of the text where it is not UTF-8 and has no byte order mark."""
        self._source = source
        self._encoding = None if source.name.startswith(HUB) else encoding
        self._name = str(source.path)
        self._column = text_column
        self._block_bytes = block_bytes
        self.position = 0
        self.sha256 = ""
        self.separator = ""
        """Between the fields of a .csv, once its first block is there."""

    def __iter__(self) -> Iterator[Block]:
        if self._source.format == ".parquet":
            yield from self._parquet()
            return
        with contextlib.closing(Stream(self._source.path, name=self._name)) as stream:
            html = self._source.format in PAGES
            for block in self._split(Utf8Stream(stream, encoding=self._encoding, html=html)):
                self.position = stream.position
                yield block
            self.position, self.sha256 = stream.position, stream.sha256

    def _split(self, stream: Utf8Stream) -> Iterator[Block]:
        if self._source.format == ".txt":
            return self._cut(stream, kind="paragraphs", last=_last_blank_line)
        if self._source.format == ".md":
            return self._cut(stream, kind="markdown", last=_last_blank_line)
        if self._source.format in PAGES:
            return self._page(stream)
        lines = self._cut(stream, kind="json", last=_last_line)
        return lines if self._source.format == ".jsonl" else self._table(lines)

    def _page(self, stream: Utf8Stream) -> Iterator[Block]:
        """A page is read whole: its end may close what its beginning opened."""
        parts: list[bytes] = []
        while piece := stream.read(self._block_bytes):
            parts.append(piece)
            if sum(map(len, parts)) > MAX_LINE_BYTES:
                reason = f"is a page of more than {MAX_LINE_BYTES >> 20} MiB"
                raise DataError(self._name, reason, fix="split it, or make it a .txt file")
        if parts:
            yield Block(source=self._name, kind="html", line=1, payload=b"".join(parts))

    def _cut(self, stream: Utf8Stream, *, kind: Kind, last: Callable[[bytes], int]) -> Iterator[Block]:
        line, held = 1, b""
        while piece := stream.read(self._block_bytes):
            held += piece
            end = last(held) if len(held) >= self._block_bytes else 0
            if not end and len(held) > MAX_LINE_BYTES:
                raise _too_long(self._name, line)
            if end:
                yield self._block(kind, line, held[:end])
                line += held.count(b"\n", 0, end)
                held = held[end:]
        if held:
            yield self._block(kind, line, held)

    def _block(self, kind: Kind, line: int, payload: bytes) -> Block:
        if len(payload) > MAX_LINE_BYTES:
            for number, content in enumerate(payload.split(b"\n"), line):
                if len(content) > MAX_LINE_BYTES:
                    raise _too_long(self._name, number)
        return Block(source=self._name, kind=kind, line=line, payload=payload)

    def _table(self, blocks: Iterable[Block]) -> Iterator[Block]:
        csv.field_size_limit(MAX_LINE_BYTES)
        lines: Iterator[str] = (line for block in blocks for line in io.StringIO(decode(block), newline="\n"))
        first = next(lines, None)
        if first is None:
            return
        lines = chain([first], lines)
        if self._source.format == ".tsv":  # where a quote is an ordinary character
            rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            self.separator = csv_separator(first)
            rows = csv.reader(lines, delimiter=self.separator)
        try:
            header = next(rows, [])
            if self._column not in header:
                raise missing_column(self._name, self._column, header)
            at = header.index(self._column)
            yield from self._gather(row[at] if at < len(row) else "" for row in rows)
        except csv.Error as error:
            raise DataError(self._name, f"line {rows.line_num}: {error}") from error

    def _gather(self, rows: Iterable[str | None]) -> Iterator[Block]:
        """Rows, one after the other, into blocks."""
        held: list[bytes] = []
        size, row, first = 0, 0, 1
        for row, text in enumerate(rows, 1):
            held.append((text or "").replace("\0", " ").encode(errors="replace"))
            size += len(held[-1]) + 1
            if size >= self._block_bytes:
                yield Block(source=self._name, kind="rows", line=first, payload=b"\0".join(held))
                held, size, first = [], 0, row + 1
        if held:
            yield Block(source=self._name, kind="rows", line=first, payload=b"\0".join(held))

    def _parquet(self) -> Iterator[Block]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(self._name, f"reading Parquet needs: {pip_install('data')}") from error
        path = self._source.path
        with tempfile.TemporaryFile() as unpacked:
            packed = path.suffix.lower() in COMPRESSIONS
            if packed:  # Parquet is read from the back, which a compressed stream cannot do
                with contextlib.closing(Stream(path, name=self._name)) as stream:
                    while piece := stream.read(1 << 20):
                        unpacked.write(piece)
            try:
                with pyarrow.parquet.ParquetFile(
                    unpacked if packed else path, pre_buffer=False, buffer_size=1 << 20
                ) as table:
                    yield from self._gather(self._parquet_rows(table, size=path.stat().st_size))
            except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
                raise DataError(self._name, f"cannot be read as Parquet: {error}") from error
        self.position, self.sha256 = path.stat().st_size, sha256_file(path)

    def _parquet_rows(self, table: Any, *, size: int) -> Iterator[str | None]:
        if self._column not in table.schema_arrow.names:
            raise missing_column(self._name, self._column, table.schema_arrow.names)
        kind = str(table.schema_arrow.field(self._column).type)
        if "string" not in kind:
            raise DataError(self._name, f"column '{self._column}' holds {kind}, not text", fix="--text-column NAME")
        total, done = max(1, table.metadata.num_rows), 0
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[self._column], use_threads=False):
            done += batch.num_rows
            self.position = size * done // total
            yield from batch.column(0).to_pylist()


def decode(block: Block, *, option: bool = True) -> str:
    """The block's text; binary data and invalid UTF-8 are a DataError that names the line.

    `option`: whether the command has --encoding, which the error then names.
    """
    if block.kind != "rows" and (at := block.payload.find(b"\0")) >= 0:
        line = block.line + block.payload.count(b"\n", 0, at)
        raise DataError(block.source, f"line {line} holds a NUL byte: binary data, not text", fix="text must be UTF-8")
    try:
        return block.payload.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(block.source, block.payload, error, line=block.line, option=option) from error


def missing_column(where: str, column: str, found: Iterable[str]) -> DataError:
    return DataError(where, f"no column '{column}'; found {', '.join(found) or 'none'}", fix="--text-column NAME")


def _too_long(name: str, line: int) -> DataError:
    limit = MAX_LINE_BYTES >> 20
    return DataError(name, f"line {line} is longer than {limit} MiB", fix="break it into paragraphs, one a line")


def _last_line(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _last_blank_line(data: bytes) -> int:
    """Where the last whole document ends, or the last line where one document fills everything."""
    unix, windows = data.rfind(b"\n\n"), data.rfind(b"\n\r\n")
    if unix < 0 and windows < 0:
        return _last_line(data)
    return max(unix + 2, windows + 3)
