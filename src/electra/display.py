"""Tables for people: aligned text for a terminal, HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

_MOST_ROWS = 20


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The table as aligned columns; of many rows the first twenty."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows[:_MOST_ROWS])]
    return "\n".join([*aligned(cells), *_rest(rows)])


def aligned(rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """The rows as lines of aligned columns: the first `left`, by default all, to the left, the others to the right."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, gaps, strict=True))
        cells = [cell + gap if left is None or place < left else gap + cell for place, (cell, gap) in pairs]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, notes: Sequence[str] = ()) -> str:
    """The table as HTML, every cell escaped; of many rows the first twenty, notes below."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) + "</tr>"
        for row in rows[:_MOST_ROWS]
    )
    below = "".join(f"<p>{html.escape(note)}</p>" for note in [*_rest(rows), *notes])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else " ".join(str(value).split())


def _rest(rows: Sequence[Sequence[object]]) -> list[str]:
    return [f"... and {len(rows) - _MOST_ROWS:,} more"] if len(rows) > _MOST_ROWS else []
