"""`electra predict`: a fine-tuned model's predictions for the rows of a file or of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from electra.cli.lines import STDIN, echo, echo_data, short, waiting_lines

if TYPE_CHECKING:
    from electra.finetune.model_folder import About
    from electra.inference.input_rows import InputRows
    from electra.inference.prediction_files import Cells, Form


@click.command("predict")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    required=True,
    metavar="M",
    help="Folder of a fine-tuning run (its median seed is used) or of one seed.",
)
@click.option("--input", "source", required=True, metavar="FILE|-", help="Rows to predict; - is standard input.")
@click.option("--text", metavar="COL", help="Column of the text, or of the question.  [as in fine-tuning]")
@click.option("--pair", metavar="COL", help="Column of the second text, or of the passage.  [as in fine-tuning]")
@click.option("--id", "id_", metavar="COL", help="Column of the rows' ids.  [rows are counted from 0]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write: .csv, .tsv, .jsonl or .parquet.  [standard output]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "tsv"]),
    help="[by the name of --out; jsonl on standard output]",
)
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True, metavar="N")
def command(
    model: Path,
    source: str,
    text: str | None,
    pair: str | None,
    id_: str | None,
    out: Path | None,
    form: Form | None,
    batch_size: int,
) -> None:
    """Predict every row of a file: labels with probabilities, values, tags, cosines of pairs, or answers to questions.

    FILE is a table (.csv, .tsv, .jsonl, .parquet), .txt (a text a line), .conll for words to tag, or a SQuAD .json. A
    table keeps its columns, labels too, and gets `prediction` and probabilities. A line of .txt or standard input holds
    two texts, with a tab between them, for a model of pairs.
    """
    from electra.finetune.model_folder import load_finetuned
    from electra.inference.input_rows import require_no_columns, rows_of_file
    from electra.inference.predict import on_device, predict_rows
    from electra.inference.prediction_files import (
        column_names,
        flat_cells,
        form_of,
        lines_of,
        table_row,
        write_predictions,
    )
    from electra.progress import counted, say

    chosen = form_of(out, form)
    loaded = load_finetuned(model)
    about = loaded.about
    chunks: Iterator[InputRows]
    if source == "-":
        require_no_columns({"--text": text, "--pair": pair, "--id": id_}, STDIN)
        chunks = _stdin_rows(about)
    else:
        chunks = iter([rows_of_file(Path(source), about, text=text, pair=pair, id=id_)])
    loaded = on_device(loaded)
    if loaded.path != model:
        say(f"{model}: predicting with {loaded.path.name}, its median")
    kept: list[Cells] = []
    header = True
    for found in chunks:
        names = None if found.table is None else column_names(found.table)
        for number, prediction in enumerate(predict_rows(loaded, found.rows, batch_size=batch_size)):
            answer = short(prediction)  # and not the table's own numbers
            row = answer if found.table is None else table_row(found.table[number], answer, about)
            cells = [row] if chosen == "jsonl" else flat_cells(row, about, names=names)
            kept += cells if out is not None else []
            for line in lines_of(cells, chosen, header=header) if out is None else ():
                echo_data(line)
            header = False
        sys.stdout.flush()
    if out is not None:
        write_predictions(out, kept, chosen)
        echo(f"{out}: {counted(len(kept), 'row')}, {about.title}", err=True)


def _stdin_rows(about: About) -> Iterator[InputRows]:
    """The rows that have arrived on standard input, as often as some have."""
    from electra.inference.input_rows import InputRows, rows_of_lines

    number = 0
    for lines in waiting_lines():
        yield InputRows(rows=rows_of_lines(lines, about, first=number, where=STDIN))
        number += len(lines)
