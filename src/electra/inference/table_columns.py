"""The columns of a new table: as named, as in fine-tuning, or as usual."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from electra.errors import DataError
from electra.finetune.model_folder import About
from electra.tasks.columns import LABEL, TEXT
from electra.tasks.table_rows import table_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumns:
    """Where a table has what a model reads."""

    text: str
    pair: str | None
    label: str
    separator: str
    names: tuple[str, ...] = ()
    """All that the table has."""

    def require_pair(self, path: Path, about: About) -> None:
        """Refuse a table without a second text."""
        if self.pair is None:
            raise DataError(path, f"{about.title} was fine-tuned on pairs of texts", fix="name both: --text, --pair")


def columns_for(
    path: Path, about: About, *, text: str | None = None, pair: str | None = None, label: str | None = None
) -> TableColumns:
    """The columns of the file: those named, otherwise those of fine-tuning where the file has them, otherwise `text`,
    `label`, and for questions `question` and `context`."""
    first = next(islice(table_rows(path), 1), None)
    names = () if first is None else tuple(first.values)
    usual = {"text": "question", "pair": "context"} if about.kind == "span" else {"text": TEXT, "label": LABEL}

    def column(role: str, named: str | None) -> str | None:
        known = about.columns.get(role)
        if named is not None or known is None:
            return named or usual.get(role)
        return usual[role] if known not in names and usual.get(role) in names else known

    return TableColumns(
        text=column("text", text) or TEXT,
        pair=column("pair", pair),
        label=column("label", label) or LABEL,
        separator=about.columns.get("separator", ","),
        names=names,
    )
