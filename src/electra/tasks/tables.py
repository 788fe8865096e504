"""Examples from CSV, TSV or JSONL files, by the columns that the caller names."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import DataError, suggest
from electra.jsontext import parse_row
from electra.tasks.files import plain_suffix, read_lines, read_text
from electra.tasks.rows import Example, Kind, Label

FORMATS = (".csv", ".tsv", ".jsonl")
MAX_FIELD_CHARS = 1 << 24
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    values: Mapping[str, Any]


def read_table(
    path: Path,
    *,
    text: str,
    pair: str | None = None,
    label: str | None = None,
    id: str | None = None,
    kind: Kind = "classify",
    separator: str = ",",
    labels: Sequence[str] | None = None,
) -> list[Example]:
    """The rows of a .csv (quoted fields), .tsv (a quote is an ordinary character) or .jsonl file, also compressed.

    CSV and TSV need a header line. `labels` are the known classes: another one is a DataError that names its line.
    Several labels of a row are a JSON list, or one string with `separator` between them.
    """
    known = None if labels is None else frozenset(labels)
    examples: list[Example] = []
    for row in _rows(path):
        example = Example(
            id=str(len(examples)) if id is None else str(_value(row, id, path=path)),
            text=_text(row, text, path=path),
            pair=None if pair is None else _text(row, pair, path=path),
            label=None if label is None else _label(row, label, path=path, kind=kind, separator=separator),
        )
        if known is not None:
            for name in label_names(example.label):
                if name not in known:
                    listed = ", ".join(list(labels or ())[:20])
                    fix = suggest(name, known) or f"known are {listed}"
                    raise DataError(path, f"line {row.line}: label '{name}' is not one of the task's", fix=fix)
        examples.append(example)
    if not examples:
        raise DataError(path, "holds no rows", fix="it needs a header line and at least one row under it")
    return examples


def read_texts(path: Path, *, column: str | None = None) -> list[str]:
    """The texts of a file: one a line, or a column of a table (by default `text`)."""
    if plain_suffix(path) in FORMATS:
        return [row.text for row in read_table(path, text=column or "text")]
    lines = read_lines(path)
    if not lines:
        raise DataError(path, "holds no texts", fix="one text a line")
    return lines


def label_names(label: Label) -> tuple[str, ...]:
    """The class names in a label: one, several, or none for a number or an unknown one."""
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, str) else ()


def labels_of(examples: Iterable[Example]) -> tuple[str, ...]:
    """Every class that occurs, sorted: as numbers where all are whole numbers, otherwise as text."""
    found = {name for example in examples for name in label_names(example.label)}
    if all(name.isascii() and name.isdigit() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def _rows(path: Path) -> Iterator[_Row]:
    match plain_suffix(path):
        case ".csv":
            return _csv(path)
        case ".tsv":
            return _tsv(path)
        case ".jsonl":
            return _jsonl(path)
    raise DataError(path, f"the name does not say what is in the file; known are {' '.join(FORMATS)}", fix="rename it")


def _csv(path: Path) -> Iterator[_Row]:
    csv.field_size_limit(MAX_FIELD_CHARS)
    text = read_text(path)
    reader = csv.reader((line[0] for line in _LINE.finditer(text)), strict=True)  # StringIO would hold it four times
    try:
        header = next(reader, [])
        _check_header(header, path=path)
        ended = reader.line_num
        for fields in reader:
            line, ended = ended + 1, reader.line_num
            if fields:
                yield _named(header, fields, path=path, line=line)
    except csv.Error as error:
        fix = "quote marks inside a field are doubled, and the field stands between quotes"
        raise DataError(path, f"line {reader.line_num}: {error}", fix=fix) from error


def _tsv(path: Path) -> Iterator[_Row]:
    lines = read_lines(path)
    header = lines[0].split("\t") if lines else []
    _check_header(header, path=path)
    for line, content in enumerate(lines[1:], 2):
        yield _named(header, content.split("\t"), path=path, line=line)


def _jsonl(path: Path) -> Iterator[_Row]:
    for line, content in enumerate(read_lines(path), 1):
        if not content.strip():
            continue
        yield _Row(line, parse_row(content, where=path, number=line))


def _check_header(header: list[str], *, path: Path) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(path, f"line 1: column '{twice[0]}' stands twice", fix="the first line must name the columns")


def _named(header: list[str], fields: list[str], *, path: Path, line: int) -> _Row:
    if len(fields) != len(header):
        fix = "a field that holds the separator needs a .csv file and quotes"
        raise DataError(path, f"line {line} has {len(fields)} fields, the header has {len(header)}", fix=fix)
    return _Row(line, dict(zip(header, fields, strict=True)))


def _value(row: _Row, column: str, *, path: Path) -> Any:
    if column not in row.values:
        found = ", ".join(row.values) or "none"
        reason = f"line {row.line}: no column '{column}'; found {found}"
        raise DataError(path, reason, fix=suggest(column, row.values) or "name one of these")
    return row.values[column]


def _text(row: _Row, column: str, *, path: Path) -> str:
    value = _value(row, column, path=path)
    if not isinstance(value, str):
        raise DataError(path, f"line {row.line}: '{column}' holds {_abbreviated(value)}, not text")
    return value


def _label(row: _Row, column: str, *, path: Path, kind: Kind, separator: str) -> Label:
    value = _value(row, column, path=path)
    where = f"line {row.line}: '{column}' holds {_abbreviated(value)}"
    if kind == "regress":
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(path, f"{where}, not a number", fix="regression needs one in every row")
        return number
    if kind == "multilabel":
        names = [part.strip() for part in value.split(separator)] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(part, str | int) for part in names):
            raise DataError(path, f"{where}, not a list of labels", fix=f'["a", "b"] or "a{separator}b"')
        return tuple(dict.fromkeys(_name(part) for part in names if part != ""))
    if value == "" or not isinstance(value, str | int):
        raise DataError(path, f"{where}, not a label", fix="every row needs one; leave the column out to predict")
    return _name(value)


def _name(value: str | int) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _abbreviated(value: Any) -> str:
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= 40 else whole[:37] + "..."
