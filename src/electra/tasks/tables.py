"""Examples from CSV, TSV, JSONL or Parquet files, by the columns that the caller names."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.corpus.separators import say_separator
from electra.corpus.streams import plain_suffix
from electra.errors import DataError, suggest
from electra.progress import WARNING, say
from electra.tasks.files import read_lines
from electra.tasks.rows import Example, Kind, Label
from electra.tasks.table_rows import FORMATS, TableRow, table_rows

_LISTED = 5
_MANY_NUMBERS = 20  # ratings of half a star have ten
_BETWEEN_LABELS = ";|"


def read_table(
    path: Path,
    *,
    text: str,
    pair: str | None = None,
    negative: str | None = None,
    label: str | None = None,
    id: str | None = None,
    kind: Kind = "classify",
    separator: str = ",",
    labels: Sequence[str] | None = None,
    rows: Iterable[TableRow] | None = None,
) -> list[Example]:
    """The rows of a .csv, .tsv, .jsonl or .parquet file, also compressed; `rows` where they are read already.

    `labels` are the known classes: another one is a DataError that names its line. Several labels of a row are a list,
    or one string with `separator` between them. Rows without text are kept and counted in a line; rows without a label
    are a DataError that counts them.
    """
    known = None if labels is None else frozenset(labels)
    examples: list[Example] = []
    empty: dict[str, list[str]] = {}
    unlabelled: list[str] = []
    for row in table_rows(path) if rows is None else rows:
        if not examples:
            say_separator(path, row.separator)
        example = Example(
            id=str(len(examples)) if id is None else str(_value(row, id, path=path)),
            place=row.place,
            text=_text(row, text, path=path),
            pair=None if pair is None else _text(row, pair, path=path),
            negative=None if negative is None else _text(row, negative, path=path),
            label=None if label is None else _label(row, label, path=path, kind=kind, separator=separator),
        )
        if known is not None:
            for name in label_names(example.label):
                if name not in known:
                    listed = ", ".join(list(labels or ())[:20])
                    fix = suggest(name, known) or f"known are {listed}"
                    raise DataError(path, f"{row.place}: label '{name}' is not one of the task's", fix=fix)
        examples.append(example)
        for column, content in ((text, example.text), (pair, example.pair)):
            if column is not None and not (content or "").strip():
                empty.setdefault(column, []).append(row.place)
        if label is not None and example.label is None:
            unlabelled.append(row.place)
    if not examples:
        raise DataError(path, "holds no rows", fix="it needs a header line and at least one row under it")
    if unlabelled:
        reason = (
            f"{len(unlabelled):,} of {len(examples):,} rows have no label in '{label}', the first in {unlabelled[0]}"
        )
        raise DataError(path, reason, fix="label them, or take them out; electra predict needs no labels")
    for column, places in empty.items():
        say(f"{path}: {len(places):,} of {len(examples):,} rows have no text in '{column}', the first in {places[0]}")
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


def numbers_of(examples: Iterable[Example], *, column: str, path: Path, fix: str) -> list[float]:
    """The numbers in a column of labels; DataError where all are the same, which leaves nothing to learn."""
    numbers = [float(one.label) for one in examples]  # type: ignore[arg-type]  # read as numbers
    if min(numbers) == max(numbers):
        raise DataError(path, f"column '{column}' has one number only: {numbers[0]:g}", fix=fix)
    return numbers


def centre_and_spread(numbers: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of numbers that differ; the latter is above 0."""
    values = np.array(numbers, np.float64)
    unit = math.ldexp(0.5, math.frexp(max(map(abs, numbers)))[1])  # so that no sum or square over- or underflows
    values = values / unit
    return unit * float(values.mean()), max(sys.float_info.min, unit * float(values.std()))


def warn_of_labels(labels: Sequence[str], *, kind: Kind, path: Path) -> None:
    """A warning where classes are many numbers, differ in upper and lower case alone, or look like several in one."""
    if kind == "classify" and len(labels) > _MANY_NUMBERS and all(map(_is_number, labels)):
        count = f"{len(labels):,} different numbers are a class each"
        say(f"{WARNING} {path}: {count}; if they measure something, use electra finetune regress")
    for mark in _BETWEEN_LABELS if kind == "multilabel" else "":
        joined = [name for name in labels if mark in name.strip(mark)]
        if 2 * len(joined) >= len(labels):
            reason = f"labels with '{mark}' in them, such as '{joined[0]}', are one label each"
            say(f"{WARNING} {path}: {reason}; --separator '{mark}' takes them apart")
    spellings: dict[str, list[str]] = {}
    for name in labels:
        spellings.setdefault(name.casefold(), []).append(name)
    several = [names for names in spellings.values() if len(names) > 1]
    if several:
        listed = "; ".join(", ".join(names) for names in several[:_LISTED])
        say(f"{WARNING} {path}: these labels differ in case only, and are classes of their own: {listed}")


def _value(row: TableRow, column: str, *, path: Path) -> Any:
    if column not in row.values:
        found = ", ".join(map(shlex.quote, row.values)) or "none"
        reason = f"{row.place}: no column '{column}'; found {found}"
        raise DataError(path, reason, fix=suggest(column, row.values) or "name one of these")
    return row.values[column]


def _text(row: TableRow, column: str, *, path: Path) -> str:
    value = _value(row, column, path=path)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(path, f"{row.place}: '{column}' holds {_abbreviated(value)}, not text")
    return value


def _label(row: TableRow, column: str, *, path: Path, kind: Kind, separator: str) -> Label:
    """The label; None where the cell is empty, which of several labels is none."""
    value = _value(row, column, path=path)
    where = f"{row.place}: '{column}' holds {_abbreviated(value)}"
    if kind != "multilabel" and _is_empty(value):
        return None
    if kind in ("regress", "pairs"):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(path, f"{where}, not a number", fix="such as 2.5")
        return number
    if kind == "multilabel":
        names = value.split(separator) if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(part, str | int) for part in names):
            raise DataError(path, f"{where}, not a list of labels", fix=f'["a", "b"] or "a{separator}b"')
        return tuple(dict.fromkeys(name for part in names if (name := _name(part))))
    if not isinstance(value, str | int):
        fix = "text or a whole number; regress takes other numbers, multilabel lists"
        raise DataError(path, f"{where}, not a label", fix=fix)
    return _name(value)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def _is_empty(value: Any) -> bool:
    """Whether a cell holds nothing: white space, null, or the NaN that pandas puts there."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def _name(value: str | int) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value).strip()


def _abbreviated(value: Any) -> str:
    whole = json.dumps(value, ensure_ascii=False, default=str)
    return whole if len(whole) <= 40 else whole[:37] + "..."
