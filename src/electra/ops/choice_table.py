"""What was chosen for each op and why, for people and as data: `electra doctor` and `electra bench` print it."""

from __future__ import annotations

from collections.abc import Sequence

from electra.display import aligned
from electra.ops import Ops

COLUMNS = ("op", "backend", "reason")


def described(ops: Ops) -> list[dict[str, str]]:
    """Op by op its name, its backend and the reason, in the order of the ops."""
    return [{"op": name, "backend": chosen.backend, "reason": chosen.reason} for name, chosen in ops]


def table_lines(rows: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS) -> list[str]:
    """A header and a line for each row, the columns aligned."""
    return aligned([columns, *([row[column] for column in columns] for row in rows)])
