"""`electra score`: pseudo-log-likelihoods of texts, by an electric or masked language model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from electra.cli.lines import echo, short, text_chunks
from electra.terminal import json_text

if TYPE_CHECKING:
    from electra.inference.results import TextScore


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
    """Print the log-likelihood of each TEXT, or of each row of a file, as JSON lines.

    The score is a pseudo-log-likelihood: the sum over the tokens of the logarithm of each one's probability given all
    the others. Compare texts of one length, or score / count. An electric model gives it in one forward pass, up to a
    constant that training keeps near 0; a masked language model needs one a token.
    """
    chunks = text_chunks(source, column, texts)
    from electra.inference.likelihood import check, on_device, score
    from electra.interop.models import load_model

    loaded = load_model(model, part=part)
    check(loaded)
    loaded = on_device(loaded)
    for rows in chunks:
        for result in score(loaded, rows, batch_size=batch_size):
            echo(json_text(short(_as_json(result, tokens=tokens))))
        sys.stdout.flush()


def _as_json(result: TextScore, *, tokens: bool) -> dict[str, object]:
    values: dict[str, object] = {"text": result.text, "score": result.score, "count": len(result.tokens)}
    if tokens:
        values["tokens"] = [asdict(token) for token in result.tokens]
    return values
