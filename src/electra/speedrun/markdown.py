"""Tables in Markdown, for what speedruns print and for the page of records."""

from __future__ import annotations

from collections.abc import Iterable

_WORDS = {"run", "text", "scored by", "trial", "changes", "equal", "settings"}


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown, its figures to the right."""
    rule = tuple("---" if name in _WORDS else "---:" for name in head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
