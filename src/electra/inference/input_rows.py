"""The rows of a file or of lines, in the shape that a fine-tuned model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from electra.errors import ConfigError, DataError
from electra.finetune.model_folder import About
from electra.tasks.conll import read_conll
from electra.tasks.files import plain_suffix, read_lines
from electra.tasks.rows import Example, Question, Sentence
from electra.tasks.squad_files import read_squad
from electra.tasks.tables import FORMATS, read_table

Row = Example | Question | Sentence

_TAKES = {
    "tag": "lines of words (.txt, standard input), .conll, or a .csv .tsv .jsonl column of them",
    "span": "SQuAD's .json, or .csv .tsv .jsonl with columns question and context, or lines 'question TAB context'",
}
_TEXT_TAKES = "lines of text (.txt, standard input) or .csv .tsv .jsonl"


def rows_of_file(
    path: Path, about: About, *, text: str | None = None, pair: str | None = None, id: str | None = None
) -> Sequence[Row]:
    """The rows of a file; `text`, `pair` and `id` name columns where it has some."""
    columns = {"--text": text, "--pair": pair, "--id": id}
    suffix = plain_suffix(path)
    if suffix in FORMATS:
        span = about.kind == "span"
        table = read_table(
            path,
            text=text or ("question" if span else "text"),
            pair=pair or ("context" if span else None),
            id=id,
        )
        if about.pairs and not span and pair is None:
            raise DataError(path, f"{about.title} was fine-tuned on pairs of texts", fix="name both: --text, --pair")
        return [_as_row(one, about) for one in table]
    require_no_columns(columns, str(path))
    if suffix == ".json" and about.kind == "span":
        return read_squad(path)
    if suffix == ".conll" and about.kind == "tag":
        return read_conll(path, tag=None)
    if suffix == ".txt":
        lines = read_lines(path)
        if not lines:
            raise DataError(path, "holds no rows", fix="one text a line")
        return rows_of_lines(lines, about, first=0, where=str(path))
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
