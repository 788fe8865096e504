"""Texts that a Python program gives, checked: a table's missing cells are NaN or None and no texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from electra.errors import DataError


def require_text(value: object, *, where: str) -> str:
    """The text itself, without halves of surrogate pairs, as data is read; DataError for anything else."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="ignore").decode()
    shown = " ".join(repr(value).split())
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    missing = "leave out missing cells, or give an empty text"
    fix = "give its texts, such as rows['text']" if _has_names(value) else missing
    raise DataError(where, f"{shown} is not a text", fix=fix)


def holds_texts(value: object) -> TypeGuard[Iterable[object]]:
    """Whether a value can be texts in an order: not a text or a set, nor a dict or data frame, which give names."""
    return isinstance(value, Iterable) and not isinstance(value, str | set | frozenset) and not _has_names(value)


def require_texts(value: str | Sequence[str]) -> Sequence[str]:
    """The texts, of which a single one stands for a list; DataError names the row that is none."""
    if isinstance(value, str):
        return [value]
    if not holds_texts(value):
        require_text(value, where="texts")
    return [require_text(one, where=f"row {number}") for number, one in enumerate(value, 1)]


def _has_names(value: object) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "columns")
