"""`electra score`: how likely texts are to an electric or masked language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from electra.cli.lines import plain_suffix, short, waiting_lines

if TYPE_CHECKING:
    from electra.score import TextScore

_COLUMNED = (".csv", ".tsv", ".jsonl")


@click.command("score")
@click.option("--model", type=click.Path(path_type=Path), required=True, metavar="M", help="Run or model folder.")
@click.option("--input", "source", metavar="FILE|-", help="Texts, one a line, or a .csv .tsv .jsonl; - is stdin.")
@click.option("--text", "column", metavar="COL", help="Column of the text in a .csv .tsv .jsonl.  [text]")
@click.option("--tokens", is_flag=True, help="The score of every token too.")
@click.option(
    "--part",
    type=click.Choice(["discriminator", "generator"]),
    default="discriminator",
    show_default=True,
    help="Which network of a run; a discriminator scores only where the objective was electric.",
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
def command(
    model: Path,
    source: str | None,
    column: str | None,
    tokens: bool,
    part: Literal["discriminator", "generator"],
    batch_size: int,
    texts: tuple[str, ...],
) -> None:
    """Tell how likely each TEXT, or each row of a file, is to the model, as JSON lines.

    The score is a pseudo-log-likelihood: the sum over the tokens of the logarithm of each one's probability given all
    the others. Compare texts of one length, or score / count. An electric model gives it in one pass, up to a constant
    that training keeps near 0; a masked language model reads the text once for every token.
    """
    if bool(texts) == (source is not None):
        raise click.UsageError("give either a TEXT or --input FILE, where - is standard input")
    parts = _parts(source, column, texts)
    from electra.interop.models import load_model
    from electra.score import check, on_device, score

    loaded = load_model(model, part=part)
    check(loaded)
    loaded = on_device(loaded)
    for rows in parts:
        for result in score(loaded, rows, batch_size=batch_size):
            click.echo(json.dumps(short(_shown(result, tokens=tokens)), ensure_ascii=False))
        sys.stdout.flush()


def _parts(source: str | None, column: str | None, texts: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """The texts, in parts that are answered together; a file that cannot be read is refused at once."""
    from electra.errors import ConfigError, DataError

    suffix = plain_suffix(Path(source)) if source is not None else ""
    if column is not None and suffix not in _COLUMNED:
        raise ConfigError("--text", "there are no columns to choose from", fix=f"use one of {' '.join(_COLUMNED)}")
    if source is None:
        return iter([texts])
    if source == "-":
        return waiting_lines()
    from electra.finetune.files import read_lines
    from electra.finetune.tables import read_table

    path = Path(source)
    if suffix in _COLUMNED:
        return iter([[row.text for row in read_table(path, text=column or "text")]])
    lines = read_lines(path)
    if not lines:
        raise DataError(path, "holds no texts", fix="one text a line")
    return iter([lines])


def _shown(result: TextScore, *, tokens: bool) -> dict[str, object]:
    shown: dict[str, object] = {"text": result.text, "score": result.score, "count": len(result.tokens)}
    if tokens:
        shown["tokens"] = [asdict(token) for token in result.tokens]
    return shown
