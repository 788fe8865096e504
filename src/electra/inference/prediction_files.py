"""Predictions as rows of .csv, .tsv, .jsonl or .parquet: those of a table keep its columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from electra.errors import ConfigError
from electra.finetune.model_folder import About
from electra.fsio import write_atomic
from electra.inference.results import Prediction
from electra.inference.vector_files import require_parquet
from electra.terminal import json_text

Form = Literal["jsonl", "csv", "tsv", "parquet"]
Cells = dict[str, Any]

PREDICTION, PROBABILITIES = "prediction", "probabilities"
_FORMS: dict[str, Form] = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_ANSWERS = {
    "classify": "label",
    "multilabel": "labels",
    "regress": "value",
    "tag": "tags",
    "span": "answer",
    "pairs": "cosine",
}
"""What a prediction calls its answer, by kind of task."""


def form_of(out: Path | None, asked: Form | None) -> Form:
    """What to write: as asked, by the name of the file, or JSON lines on standard output; refused where it cannot be
    written."""
    named = None if out is None else _FORMS.get(out.suffix.lower())
    if out is not None and not asked and not named:
        fix = f"end it in {' or '.join(_FORMS)}"
        raise ConfigError("--out", f"{out.name!r} does not say what to write", fix=fix)
    if asked and named and asked != named:
        raise ConfigError("--format", f"{asked} does not go into {out}", fix="leave one of them out")
    form = asked or named or "jsonl"
    if form == "parquet":
        require_parquet()
    return form


def column_names(table: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every column of a table, in the order of appearance; rows of JSON lines may differ."""
    return list(dict.fromkeys(name for row in table for name in row))


def table_row(values: Mapping[str, Any], prediction: Prediction, about: About) -> Cells:
    """A row of a table with its prediction behind its own columns; a name that is taken gets `model_` in front."""
    answer = _ANSWERS[about.kind]
    added = {PREDICTION: prediction[answer]}
    added |= {name: value for name, value in prediction.items() if name not in ("id", "words", answer)}
    return {**values, **{_free(name, values): value for name, value in added.items()}}


def flat_cells(row: Cells, about: About, *, names: Sequence[str] | None) -> list[Cells]:
    """One value a column; `names` are those of a table. The words of a sentence that is in no table are a row each."""
    if names is None and about.kind == "tag":
        tagged = zip(row["words"], row["tags"], row[PROBABILITIES], strict=True)
        return [{"id": row["id"], "word": word, "tag": tag, "probability": p} for word, tag, p in tagged]
    cells = {name: row.get(name) for name in names or ()}
    for name, value in row.items():
        if name in cells:
            continue
        if isinstance(value, dict):
            cells |= {label if names is None else _free(f"probability_{label}", names): p for label, p in value.items()}
        elif name != "n_best" and not (names is not None and name.endswith(PROBABILITIES)):
            separator = " " if about.kind == "tag" else about.columns.get("separator", ",")
            cells[name] = separator.join(map(str, value)) if isinstance(value, list) else value
    return [cells]


def _free(name: str, taken: Container[str]) -> str:
    """The name, with as many `model_` in front as it takes to be none of the table's own."""
    while name in taken:
        name = f"model_{name}"
    return name


def lines_of(rows: Sequence[Cells], form: Form, *, header: bool) -> Iterator[str]:
    """The rows as lines, with the names of the columns first where a `header` is due."""
    if form == "jsonl":
        yield from (json_text(row) for row in rows)
        return
    for cells in [list(rows[0]), *(row.values() for row in rows)][0 if header else 1 :] if rows else []:
        if form == "tsv":
            yield "\t".join(" ".join(_cell(cell).replace("\t", " ").splitlines()) for cell in cells)
        else:
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow([_cell(cell) for cell in cells])
            yield line.getvalue()


def write_predictions(path: Path, rows: Sequence[Cells], form: Form) -> None:
    """Put the rows into a file, whole or not at all."""
    if form != "parquet":
        write_atomic(path, "".join(f"{line}\n" for line in lines_of(rows, form, header=True)).encode(errors="replace"))
        return
    import pyarrow
    import pyarrow.parquet

    columns = {}
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except pyarrow.ArrowException:  # values of several types
            columns[name] = pyarrow.array([None if value is None else _cell(value) for value in values])
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content)
    write_atomic(path, content.getvalue())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else str(value)
