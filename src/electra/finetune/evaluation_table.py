"""An evaluation as printed lines: each class, which classes are confused, the worst errors."""

from __future__ import annotations

from typing import Any

from electra.display import aligned
from electra.metrics.spread import share_interval

MOST_COLUMNS = 12
"""Classes of a confusion matrix that is printed whole; of more, the most frequent confusions."""
SHOWN_CLASSES, SHOWN_ERRORS = 30, 5
FEW_ROWS = 1_000
"""A share of fewer is shown with its interval."""
_TEXT, _NAME = 90, 24


def evaluation_lines(value: dict[str, Any]) -> list[str]:
    """The lines of an evaluation.json, or of what `evaluation` gives; empty ones between the parts."""
    parts = [_classes(value), _confusion(value), _errors(value)]
    return [line for part in parts if part for line in ["", *part]]


def score_line(value: dict[str, Any]) -> str:
    """`CLASSIFY: accuracy 91.50, macro_f1 88.20 (200 rows)`."""
    scores = ", ".join(f"{name} {value['scores'][name]:.2f}" for name in value["metrics"] if name in value["scores"])
    return f"{value['title']}: {scores} ({value['rows']:,} rows)"


def _classes(value: dict[str, Any]) -> list[str]:
    rows = value["classes"]
    if not rows:
        return []
    what = "type" if value["kind"] == "tag" and "f1" in value["metrics"] else "class"
    cells: list[tuple[str, ...]] = [(what, "precision", "recall", "f1", "rows" if what == "class" else "spans")]
    for row in rows[:SHOWN_CLASSES]:
        figures = (f"{row[name]:.1f}" for name in ("precision", "recall", "f1"))
        cells.append((_short(row["label"], _NAME), *figures, f"{row['support']:,}"))
    more = [f"... and {len(rows) - SHOWN_CLASSES:,} more"] if len(rows) > SHOWN_CLASSES else []
    return [*aligned(cells, left=1), *more]


def _confusion(value: dict[str, Any]) -> list[str]:
    matrix, labels = value["confusion"], [_short(label, _NAME) for label in value["labels"]]
    if not matrix:
        return []
    if len(labels) <= MOST_COLUMNS:
        rows = [(name, *(f"{n:,}" for n in row)) for name, row in zip(labels, matrix, strict=True)]
        return aligned([("real \\ predicted", *labels), *rows], left=1)
    pairs = [
        (count, labels[real], labels[predicted])
        for real, row in enumerate(matrix)
        for predicted, count in enumerate(row)
        if real != predicted and count
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return ["most often confused:", *(f"  {count:,} of {real} as {other}" for count, real, other in pairs[:8])]


def _errors(value: dict[str, Any]) -> list[str]:
    errors = value["errors"][:SHOWN_ERRORS]
    if not errors:
        return []
    if value["kind"] == "regress":
        first = "largest differences:"
    elif value["kind"] == "pairs" and "spearman" in value["metrics"]:
        first = "ranked most differently, score as cosine:"
    else:
        first = f"{value['wrong']:,} of {value['rows']:,} rows are wrong{_range(value)}; the worst:"
    return [first, *(f"  {_error(one)}" for one in errors)]


def _range(value: dict[str, Any]) -> str:
    """The 95 % interval of the share of wrong rows, where they are few. A pair is found among the rows there are."""
    if value["rows"] >= FEW_ROWS or value["kind"] == "pairs":
        return ""
    low, high = (100 * end for end in share_interval(value["wrong"], value["rows"]))
    return f" ({low:.0f} to {high:.0f} % of many more would be)"


def _error(one: dict[str, Any]) -> str:
    text = one["text"] if one["pair"] is None else f"{one['text']} | {one['pair']}"
    sure = "" if one["probability"] is None else f" {one['probability']:.2f}"
    where = one.get("place") or f"row {one['id']}"  # older files have no places
    return f"{where}: {_value(one['label'])} as {_value(one['prediction'])}{sure}: {_short(text, _TEXT)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return _short(" ".join(map(str, value)) or "none" if isinstance(value, list) else str(value), _TEXT)


def _short(text: str, most: int) -> str:
    """One line of a text; control characters become visible where it is printed."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
