"""Texts that a Python program gives, checked: a table's missing cells are NaN or None and no texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from electra.errors import DataError


def require_text(value: object, *, where: str) -> str:
    """The text itself, without halves of surrogate pairs, as data is read; DataError for anything else."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="ignore").decode()
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    raise DataError(where, f"{shown} is not a text", fix="leave out missing cells, or give an empty text")


def require_texts(value: str | Sequence[str]) -> Sequence[str]:
    """The texts, of which a single one stands for a list; DataError names the row that is none."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        require_text(value, where="texts")
    return [require_text(one, where=f"row {number}") for number, one in enumerate(value, 1)]
