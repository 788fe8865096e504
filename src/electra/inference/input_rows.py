"""The rows of a file or of lines, in the shape that a fine-tuned model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.corpus.streams import plain_suffix
from electra.errors import ConfigError, DataError
from electra.finetune.model_folder import About
from electra.inference.table_columns import columns_for
from electra.tasks.conll import read_conll
from electra.tasks.files import read_lines
from electra.tasks.rows import Example, Question, Sentence
from electra.tasks.squad_files import read_squad
from electra.tasks.table_rows import FORMATS, table_rows
from electra.tasks.tables import read_table

Row = Example | Question | Sentence

_TABLES = " ".join(FORMATS)
_TAKES = {
    "tag": f"lines of words (.txt, standard input), .conll, or a {_TABLES} column of them",
    "span": f"SQuAD's .json, or {_TABLES} with columns question and context, or lines 'question TAB context'",
}
_TEXT_TAKES = f"lines of text (.txt, standard input) or {_TABLES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRows:
    """The rows of a file for a model, and of a table its columns, which an output keeps."""

    rows: Sequence[Row]
    table: Sequence[Mapping[str, Any]] | None = None


def rows_of_file(
    path: Path, about: About, *, text: str | None = None, pair: str | None = None, id: str | None = None
) -> InputRows:
    """The rows of a file; `text`, `pair` and `id` name columns where it has some, otherwise those of fine-tuning."""
    columns = {"--text": text, "--pair": pair, "--id": id}
    suffix = plain_suffix(path)
    if suffix in FORMATS:
        found = columns_for(path, about, text=text, pair=pair)
        if about.pairs and about.kind != "span":
            found.require_pair(path, about)
        whole = list(table_rows(path))
        table = read_table(path, text=found.text, pair=found.pair, id=id, rows=whole)
        return InputRows(rows=[_as_row(one, about) for one in table], table=[row.values for row in whole])
    require_no_columns(columns, str(path))
    if suffix == ".json" and about.kind == "span":
        return InputRows(rows=read_squad(path))
    if suffix == ".conll" and about.kind == "tag":
        return InputRows(rows=read_conll(path, tag=None))
    if suffix == ".txt":
        lines = read_lines(path)
        if not lines:
            raise DataError(path, "holds no rows", fix="one text a line")
        return InputRows(rows=rows_of_lines(lines, about, first=0, where=str(path)))
    if not path.is_file():
        raise DataError(path, "is not a file", fix=f"{about.title} takes {_TAKES.get(about.kind, _TEXT_TAKES)}")
    reason = f"{about.title} ({about.kind}) does not take {suffix or 'a file without a suffix'}"
    raise DataError(path, reason, fix=f"it takes {_TAKES.get(about.kind, _TEXT_TAKES)}")


def rows_of_lines(lines: Sequence[str], about: About, *, first: int, where: str) -> list[Row]:
    """One row a line, numbered from `first`; two texts stand with a tab between them."""
    return [_as_row(_line(line, first + place, about, where), about) for place, line in enumerate(lines)]


def require_no_columns(columns: Mapping[str, str | None], where: str) -> None:
    """Refuse column names for an input that has no columns."""
    for option, column in columns.items():
        if column is not None:
            raise ConfigError(option, f"{where} has no columns to choose from", fix=f"use one of {' '.join(FORMATS)}")


def _as_row(one: Example, about: About) -> Row:
    if about.kind == "tag":
        return Sentence(id=one.id, words=tuple(one.text.split()))
    if about.kind == "span":
        return Question(id=one.id, question=one.text.strip(), context=one.pair or "")
    return one


def _line(line: str, number: int, about: About, where: str) -> Example:
    """One text, or two with a tab between them where the model takes two."""
    if not about.pairs and about.kind != "span":
        return Example(id=str(number), text=line)
    first, tab, second = line.partition("\t")
    if not tab:
        needs = "a question and a passage" if about.kind == "span" else "two texts"
        raise DataError(where, f"line {number + 1}: {about.title} needs {needs}, with a tab between them")
    return Example(id=str(number), text=first, pair=second)
