"""Which columns of a table hold the text and the label: as named, or guessed where that is obvious."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from electra.errors import DataError
from electra.tasks.rows import Kind
from electra.tasks.table_rows import TableRow, table_rows

TEXT, LABEL, PAIR = "text", "label", "pair"
"""Names that need no guess."""
_TEXTS = ("sentence", "review", "comment", "content", "body", "message", "document", "tweet", "post", "question")
_LABELS = ("class", "category", "target", "sentiment", "verdict", "rating", "labels", "tags", "score", "y")
_PAIRS = (
    (TEXT, PAIR),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "passage"),
    ("question", "answer"),
)
_SCORES = ("score", "scores", "similarity", "label", "is_duplicate")
_LOOK_ROWS = 1000
_TEXT_WORDS = 3  # a column whose values have fewer words on average is no text
_REPEATS = 4  # a column of classes has each class this often, on average


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which columns of a table hold what; None: to be guessed."""

    text: str | None = None
    pair: str | None = None
    """The second text; guessed only where the first is."""
    label: str | None = None
    """Of pairs: the graded score, which is never guessed."""
    negative: str | None = None
    """Of pairs: a hard negative."""
    separator: str = ","
    """Between the labels of one row, for multi-label tasks."""


def find_columns(path: Path, columns: Columns, *, kind: Kind) -> Columns:
    """The columns with text and label filled in: by their usual names, or the only ones that look like it.

    Where nothing is obvious, a DataError lists what there is and says what to type. Of pairs, and of a file without
    rows, they are then `text` and its like, and the reader says what is missing.
    """
    _require_different(path, columns, kind=kind)
    if kind == "pairs":
        return _find_pair(path, columns)
    if columns.text and columns.label:
        return columns
    rows = list(islice(table_rows(path), _LOOK_ROWS))
    label = columns.label or _guess_label(rows, kind=kind, other=(columns.text, columns.pair))
    text, pair = columns.text, columns.pair
    if text is None and pair is None:
        text, pair = _usual_pair(_free(rows, (label,)), columns) or (None, None)
    text = text or _guess_text(rows, other=(label, pair))
    if rows and not (text and label):
        raise _unclear(path, rows, text=text, label=label, pair=pair)
    return replace(columns, text=text or TEXT, pair=pair, label=label or LABEL)


def unread_texts(path: Path, columns: Columns) -> list[str]:
    """The columns that look like texts and are none of those to be read."""
    rows = list(islice(table_rows(path), _LOOK_ROWS))
    free = _free(rows, (columns.text, columns.pair, columns.label, columns.negative))
    return [name for name in free if _words(rows, name) >= _TEXT_WORDS]


def _require_different(path: Path, columns: Columns, *, kind: Kind) -> None:
    """Refuse a column that is named for two things."""
    label = "score" if kind == "pairs" else "label"
    roles: dict[str, str] = {}
    for role, name in (("text", columns.text), ("pair", columns.pair), (label, columns.label)):
        if name is not None and roles.setdefault(name, role) != role:
            reason = f"column '{name}' is named twice, by --{roles[name]} and --{role}"
            raise DataError(path, reason, fix=f"name another with --{role}")


def _unclear(
    path: Path, rows: Sequence[TableRow], *, text: str | None, label: str | None, pair: str | None
) -> DataError:
    """What to tell where a column is not obvious: those that there are, and which to name, for example."""
    free = sorted(_free(rows, (text, label, pair)), key=lambda name: -_words(rows, name))
    roles = [role for role, name in (("text", text), ("label", label)) if name is None]
    found = ", ".join(map(shlex.quote, rows[0].values))
    if len(free) < len(roles):
        fix = "every row needs both, in columns of their own"
        return DataError(path, f"has no column for the {roles[-1]}; found {found}", fix=fix)
    ends = {"text": free[0], "label": free[-1]}
    which = " and which ".join(f"the {role}" for role in roles)
    options = " ".join(f"--{role} {shlex.quote(ends[role])}" for role in roles)
    return DataError(path, f"it is not clear which column holds {which}; found {found}", fix=f"for example {options}")


def score_column(path: Path, columns: Columns) -> str | None:
    """A column of pairs that looks like graded scores, where none was named."""
    if columns.label is not None:
        return None
    rows = list(islice(table_rows(path), _LOOK_ROWS))
    return next((name for name in _free(rows, ()) if name.lower() in _SCORES and _is_number(rows, name)), None)


def _find_pair(path: Path, columns: Columns) -> Columns:
    """The columns of two texts: as named, by two names that go together, or the only two that look like texts."""
    if columns.text and columns.pair:
        return columns
    rows = list(islice(table_rows(path), _LOOK_ROWS))
    names = _free(rows, (columns.label, columns.negative))
    found = _usual_pair(names, columns)
    if found is None:
        wordy = [name for name in names if _words(rows, name) >= _TEXT_WORDS]
        left = [name for name in wordy if name not in (columns.text, columns.pair)]
        both = [columns.text or next(iter(left), TEXT), columns.pair or next(iter(left[::-1]), PAIR)]
        certain = len({*wordy, *(name for name in (columns.text, columns.pair) if name)}) == 2
        found = (both[0], both[1]) if certain else (columns.text or TEXT, columns.pair or PAIR)
    return replace(columns, text=found[0], pair=found[1])


def _usual_pair(names: Sequence[str], columns: Columns) -> tuple[str, str] | None:
    """Two columns whose names go together, with those that are named in the place of theirs."""
    usual = [(columns.text or one, columns.pair or two) for one, two in _PAIRS]
    return next(((one, two) for one, two in usual if one in names and two in names and one != two), None)


def _guess_text(rows: Sequence[TableRow], *, other: tuple[str | None, ...]) -> str | None:
    names = _free(rows, other)
    wordy = [name for name in names if _words(rows, name) >= _TEXT_WORDS]
    return _named(names, (TEXT, *_TEXTS)) or (wordy[0] if len(wordy) == 1 else None)


def _guess_label(rows: Sequence[TableRow], *, kind: Kind, other: tuple[str | None, ...]) -> str | None:
    names = _free(rows, other)
    likely = [name for name in names if (_is_number if kind == "regress" else _repeats)(rows, name)]
    return _named(names, (LABEL, *_LABELS)) or (likely[0] if len(likely) == 1 else None)


def _free(rows: Sequence[TableRow], other: tuple[str | None, ...]) -> list[str]:
    return [name for name in (rows[0].values if rows else ()) if name not in other]


def _named(names: Sequence[str], usual: tuple[str, ...]) -> str | None:
    """The usual name itself, or the only column that has one of the others."""
    if usual[0] in names:
        return usual[0]
    found = [name for name in names if name.strip().lower() in usual]
    return found[0] if len(found) == 1 else None


def _words(rows: Sequence[TableRow], name: str) -> float:
    values = [row.values.get(name) for row in rows]
    texts = ["" if value is None else value for value in values]
    if not all(isinstance(text, str) for text in texts):
        return 0.0
    return sum(len(text.split()) for text in texts) / max(1, len(texts))


def _repeats(rows: Sequence[TableRow], name: str) -> bool:
    """Whether a column has few short values, each of them often."""
    values = [str(row.values.get(name)) for row in rows]
    return 1 < len(set(values)) <= len(values) / _REPEATS and _words(rows, name) < _TEXT_WORDS


def _is_number(rows: Sequence[TableRow], name: str) -> bool:
    try:
        return bool([float(row.values[name]) for row in rows])
    except (KeyError, TypeError, ValueError):
        return False
