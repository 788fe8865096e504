"""The rows of a .csv, .tsv, .jsonl or .parquet file as they are: a value for each column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.corpus.separators import csv_separator
from electra.corpus.streams import plain_suffix
from electra.errors import ConfigError, DataError, pip_install
from electra.fsio import open_file
from electra.jsontext import parse_row
from electra.tasks.files import MAX_BYTES, MAX_LINES, read_lines, read_text

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
MAX_FIELD_CHARS = 1 << 24
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_PARQUET_ROWS = 4096


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: where it stands in its file, and its values by column."""

    place: str
    """`line 12`, or `row 11` of a Parquet file."""
    values: Mapping[str, Any]
    separator: str = ""
    """Between the fields of a .csv."""


def table_rows(path: Path) -> Iterator[TableRow]:
    """The rows of a file, also of a compressed one; a DataError names the first that cannot be read.

    .csv has quoted fields, with semicolons or tabs between them where the header line has no comma; in .tsv a quote is
    an ordinary character. Both need a header line.
    """
    match plain_suffix(path):
        case ".csv":
            return _csv(path)
        case ".tsv":
            return _tsv(path)
        case ".jsonl":
            return _jsonl(path)
        case ".parquet":
            return _parquet(path)
    raise DataError(path, f"the name does not say what is in the file; known are {' '.join(FORMATS)}", fix="rename it")


def _csv(path: Path) -> Iterator[TableRow]:
    csv.field_size_limit(MAX_FIELD_CHARS)
    text = read_text(path)
    lines = (line[0] for line in _LINE.finditer(text))  # StringIO would hold it four times
    first = _LINE.match(text)
    separator = csv_separator(first[0] if first else "")
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        header = next(reader, [])
        _check_header(header, path=path)
        ended = reader.line_num
        for fields in reader:
            line, ended = ended + 1, reader.line_num
            if fields:
                yield _named(header, fields, path=path, line=line, separator=separator)
    except csv.Error as error:
        fix = "quote marks inside a field are doubled, and the field stands between quotes"
        raise DataError(path, f"line {reader.line_num}: {error}", fix=fix) from error


def _tsv(path: Path) -> Iterator[TableRow]:
    lines = read_lines(path)
    header = lines[0].split("\t") if lines else []
    _check_header(header, path=path)
    for line, content in enumerate(lines[1:], 2):
        yield _named(header, content.split("\t"), path=path, line=line)


def _jsonl(path: Path) -> Iterator[TableRow]:
    for line, content in enumerate(read_lines(path), 1):
        if not content.strip():
            continue
        yield TableRow(f"line {line}", parse_row(content, where=path, number=line))


def _parquet(path: Path) -> Iterator[TableRow]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(str(path), f"reading Parquet needs: {pip_install('data')}") from error
    size = number = 0
    try:
        with open_file(path) as file, pyarrow.parquet.ParquetFile(file, pre_buffer=False) as table:
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
                size += batch.nbytes
                if size > MAX_BYTES or number + batch.num_rows > MAX_LINES:
                    reason = f"holds more than {MAX_BYTES >> 20} MiB, or {MAX_LINES:,} rows"
                    raise DataError(path, reason, fix="give a part of it")
                for values in batch.to_pylist():
                    number += 1
                    yield TableRow(f"row {number}", values)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(path, f"cannot be read as Parquet: {error}") from error


def _check_header(header: list[str], *, path: Path) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(path, f"line 1: column '{twice[0]}' stands twice", fix="the first line must name the columns")


def _named(header: list[str], fields: list[str], *, path: Path, line: int, separator: str = "") -> TableRow:
    if len(fields) != len(header):
        needs = "quotes" if separator else "a .csv file and quotes"
        reason = f"line {line} has {len(fields)} fields, the header has {len(header)}"
        raise DataError(path, reason, fix=f"a field that holds the separator needs {needs}")
    return TableRow(f"line {line}", dict(zip(header, fields, strict=True)), separator)
