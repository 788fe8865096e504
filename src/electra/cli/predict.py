"""`electra predict`: what a fine-tuned model says about a file's or standard input's rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import STDIN, plain_suffix, short, waiting_lines

if TYPE_CHECKING:
    from electra.finetune.folder import About
    from electra.finetune.rows import Example, Question, Sentence

    Row = Example | Question | Sentence

_COLUMNED = (".csv", ".tsv", ".jsonl")
_TAKES = {
    "tag": "lines of words (.txt, standard input), .conll, or a .csv .tsv .jsonl column of them",
    "span": "SQuAD's .json, or .csv .tsv .jsonl with columns question and context, or lines 'question TAB context'",
}
_TEXT_TAKES = "lines of text (.txt, standard input) or .csv .tsv .jsonl"


@click.command("predict")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    required=True,
    metavar="M",
    help="Folder of a fine-tuning run (its median seed is used) or of one seed.",
)
@click.option("--input", "source", required=True, metavar="FILE|-", help="What to answer; - is standard input.")
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
    """Answer every row of a file: labels with probabilities, values, tags, or answers to questions.

    FILE is .txt (a text a line), .csv, .tsv or .jsonl with columns, .conll for words to tag, or a SQuAD .json. A line
    of .txt or standard input holds two texts, with a tab between them, for a model of pairs.
    """
    from electra.finetune.folder import load_tuned
    from electra.finetune.predict import on_device, predictions
    from electra.fsio import write_atomic
    from electra.progress import say

    loaded = load_tuned(model)
    about = loaded.about
    columns = {"--text": text, "--pair": pair, "--id": id_}
    parts: Iterator[Sequence[Row]]
    if source == "-":
        _no_columns(columns, STDIN)
        parts = _waiting_rows(about)
    else:
        parts = iter([_rows(Path(source), about, columns)])
    loaded = on_device(loaded)
    if loaded.path != model:
        say(f"{model}: answering with {loaded.path.name}, its median")
    kept: list[str] = []
    for number, rows in enumerate(parts):
        if form == "tsv" and number == 0:
            _put([_header(about)], kept, out)
        for prediction in predictions(loaded, rows, batch_size=batch_size):
            _put(_shown(prediction, about, form), kept, out)
        sys.stdout.flush()
    if out is not None:
        write_atomic(out, "".join(line + "\n" for line in kept).encode())
        click.echo(f"{out}: {about.title}", err=True)


def _put(lines: list[str], kept: list[str], out: Path | None) -> None:
    if out is not None:
        kept += lines
    else:
        for line in lines:
            click.echo(line)


def _rows(path: Path, about: About, columns: dict[str, str | None]) -> Sequence[Row]:
    """The rows of a file in the shape that the model answers."""
    from electra.errors import DataError
    from electra.finetune.conll import read_conll
    from electra.finetune.files import read_lines
    from electra.finetune.squad import read_squad
    from electra.finetune.tables import read_table

    suffix = plain_suffix(path)
    if suffix in _COLUMNED:
        span = about.kind == "span"
        table = read_table(
            path,
            text=columns["--text"] or ("question" if span else "text"),
            pair=columns["--pair"] or ("context" if span else None),
            id=columns["--id"],
        )
        if about.pairs and not span and columns["--pair"] is None:
            raise DataError(path, f"{about.title} was fine-tuned on pairs of texts", fix="name both: --text, --pair")
        return [_row(one, about) for one in table]
    _no_columns(columns, str(path))
    if suffix == ".json" and about.kind == "span":
        return read_squad(path)
    if suffix == ".conll" and about.kind == "tag":
        return read_conll(path, tag=None)
    if suffix == ".txt":
        lines = read_lines(path)
        if not lines:
            raise DataError(path, "holds no rows", fix="one text a line")
        return [_row(_line(line, number, about, str(path)), about) for number, line in enumerate(lines)]
    if not path.is_file():
        raise DataError(path, "is not a file", fix=f"{about.title} takes {_TAKES.get(about.kind, _TEXT_TAKES)}")
    reason = f"{about.title} ({about.kind}) does not take {suffix or 'a file without a suffix'}"
    raise DataError(path, reason, fix=f"it takes {_TAKES.get(about.kind, _TEXT_TAKES)}")


def _row(one: Example, about: About) -> Row:
    from electra.finetune.rows import Question, Sentence

    if about.kind == "tag":
        return Sentence(id=one.id, words=tuple(one.text.split()))
    if about.kind == "span":
        return Question(id=one.id, question=one.text.strip(), context=one.pair or "")
    return one


def _line(line: str, number: int, about: About, where: str) -> Example:
    """One text, or two with a tab between them where the model needs two."""
    from electra.errors import DataError
    from electra.finetune.rows import Example

    if not about.pairs and about.kind != "span":
        return Example(id=str(number), text=line)
    first, tab, second = line.partition("\t")
    if not tab:
        needs = "a question and a passage" if about.kind == "span" else "two texts"
        raise DataError(where, f"line {number + 1}: {about.title} needs {needs}, with a tab between them")
    return Example(id=str(number), text=first, pair=second)


def _no_columns(columns: dict[str, str | None], where: str) -> None:
    from electra.errors import ConfigError

    for option, column in columns.items():
        if column is not None:
            raise ConfigError(option, f"{where} has no columns to choose from", fix=f"use one of {' '.join(_COLUMNED)}")


def _waiting_rows(about: About) -> Iterator[Sequence[Row]]:
    """The rows that have arrived on standard input, as often as some have."""
    number = 0
    for lines in waiting_lines():
        yield [_row(_line(line, number + place, about, STDIN), about) for place, line in enumerate(lines)]
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


def _shown(prediction: dict[str, Any], about: About, form: str) -> list[str]:
    """The lines of one prediction."""
    if form == "jsonl":
        return [json.dumps(short(prediction), ensure_ascii=False)]
    values: list[list[Any]]
    if about.kind == "tag":
        columns = zip(prediction["words"], prediction["tags"], prediction["probabilities"], strict=True)
        values = [[prediction["id"], *row] for row in columns]
    elif about.kind in ("classify", "multilabel"):
        said = prediction["label"] if about.kind == "classify" else ",".join(prediction["labels"])
        values = [[prediction["id"], said, *prediction["probabilities"].values()]]
    else:
        values = [[value for key, value in prediction.items() if key != "n_best"]]
    return ["\t".join(_cell(value) for value in row) for row in values]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else " ".join(str(value).replace("\t", " ").splitlines())
