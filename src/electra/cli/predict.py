"""`electra predict`: a fine-tuned model's predictions for the rows of a file or of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import STDIN, echo, short, waiting_lines
from electra.terminal import json_text

if TYPE_CHECKING:
    from electra.finetune.model_folder import About
    from electra.inference.input_rows import Row


@click.command("predict")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    required=True,
    metavar="M",
    help="Folder of a fine-tuning run (its median seed is used) or of one seed.",
)
@click.option("--input", "source", required=True, metavar="FILE|-", help="Rows to predict; - is standard input.")
@click.option("--text", metavar="COL", help="Column of the text, or of the question.  [text; question]")
@click.option("--pair", metavar="COL", help="Column of the second text, or of the passage.  [none; context]")
@click.option("--id", "id_", metavar="COL", help="Column of the rows' ids.  [rows are counted from 0]")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write instead of standard output."
)
@click.option("--format", "form", type=click.Choice(["jsonl", "tsv"]), default="jsonl", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True, metavar="N")
def command(
    model: Path,
    source: str,
    text: str | None,
    pair: str | None,
    id_: str | None,
    out: Path | None,
    form: str,
    batch_size: int,
) -> None:
    """Predict every row of a file: labels with probabilities, values, tags, or answers to questions.

    FILE is .txt (a text a line), .csv, .tsv or .jsonl with columns, .conll for words to tag, or a SQuAD .json. A line
    of .txt or standard input holds two texts, with a tab between them, for a model of pairs.
    """
    from electra.finetune.model_folder import load_finetuned
    from electra.fsio import write_atomic
    from electra.inference.input_rows import require_no_columns, rows_of_file
    from electra.inference.predict import on_device, predict_rows
    from electra.progress import say

    loaded = load_finetuned(model)
    about = loaded.about
    chunks: Iterator[Sequence[Row]]
    if source == "-":
        require_no_columns({"--text": text, "--pair": pair, "--id": id_}, STDIN)
        chunks = _stdin_rows(about)
    else:
        chunks = iter([rows_of_file(Path(source), about, text=text, pair=pair, id=id_)])
    loaded = on_device(loaded)
    if loaded.path != model:
        say(f"{model}: predicting with {loaded.path.name}, its median")
    lines: list[str] = []
    for number, rows in enumerate(chunks):
        if form == "tsv" and number == 0:
            _put([_header(about)], lines, out)
        for prediction in predict_rows(loaded, rows, batch_size=batch_size):
            _put(_formatted(prediction, about, form), lines, out)
        sys.stdout.flush()
    if out is not None:
        write_atomic(out, "".join(line + "\n" for line in lines).encode())
        echo(f"{out}: {about.title}", err=True)


def _put(new: list[str], lines: list[str], out: Path | None) -> None:
    """Print the new lines, or add them to those that go to a file."""
    if out is not None:
        lines += new
    else:
        for line in new:
            echo(line)


def _stdin_rows(about: About) -> Iterator[Sequence[Row]]:
    """The rows that have arrived on standard input, as often as some have."""
    from electra.inference.input_rows import rows_of_lines

    number = 0
    for lines in waiting_lines():
        yield rows_of_lines(lines, about, first=number, where=STDIN)
        number += len(lines)


def _header(about: About) -> str:
    columns = {
        "tag": ["id", "word", "tag", "probability"],
        "span": ["id", "answer", "start", "end", "score", "null_odds"],
        "regress": ["id", "value"],
        "classify": ["id", "label", *about.labels],
        "multilabel": ["id", "labels", *about.labels],
    }[about.kind]
    return "\t".join(_cell(name) for name in columns)


def _formatted(prediction: dict[str, Any], about: About, form: str) -> list[str]:
    """The lines of one prediction."""
    if form == "jsonl":
        return [json_text(short(prediction))]
    values: list[list[Any]]
    if about.kind == "tag":
        columns = zip(prediction["words"], prediction["tags"], prediction["probabilities"], strict=True)
        values = [[prediction["id"], *row] for row in columns]
    elif about.kind in ("classify", "multilabel"):
        predicted = prediction["label"] if about.kind == "classify" else ",".join(prediction["labels"])
        values = [[prediction["id"], predicted, *prediction["probabilities"].values()]]
    else:
        values = [[value for key, value in prediction.items() if key != "n_best"]]
    return ["\t".join(_cell(value) for value in row) for row in values]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else " ".join(str(value).replace("\t", " ").splitlines())
