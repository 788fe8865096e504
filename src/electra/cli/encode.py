"""`electra encode`: texts as vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from electra.cli.lines import echo, echo_data, text_chunks
from electra.progress import counted


@click.command("encode")
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="M", help="Model folder or hub name.  [the package's largest]"
)
@click.option("--input", "source", metavar="FILE|-", help="Texts, one a line, or a .csv .tsv .jsonl; - is stdin.")
@click.option("--text", "column", metavar="COL", help="Column of the text in a .csv .tsv .jsonl.  [text]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write: .npy, .jsonl or .parquet.  [JSON lines on standard output]",
)
@click.option(
    "--pooling", type=click.Choice(["mean", "cls"]), default="mean", show_default=True, help="Of all tokens, or [CLS]."
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
def command(
    model: Path | None,
    source: str | None,
    column: str | None,
    out: Path | None,
    pooling: Literal["mean", "cls"],
    batch_size: int,
    texts: tuple[str, ...],
) -> None:
    """Turn each TEXT, or each row of a file, into a vector: the mean of the encoder's last hidden states.

    A text longer than the model reads becomes windows that overlap by half; its vector is the mean of theirs.
    """
    from electra.inference.vector_files import json_lines, require_format, write_vectors

    if out is not None:
        require_format(out)
    chunks = text_chunks(source, column, texts)
    from electra.finetune.pretrained import default_model, to_encode
    from electra.inference.encode import encode, on_device

    loaded = on_device(to_encode(model or default_model()))
    if out is not None:
        rows = [text for chunk in chunks for text in chunk]
        vectors = encode(loaded, rows, pooling=pooling, batch_size=batch_size)
        write_vectors(out, rows, vectors)
        echo(f"{out}: {counted(vectors.shape[0], 'vector')} of {vectors.shape[1]}", err=True)
        return
    for chunk in chunks:
        for line in json_lines(chunk, encode(loaded, chunk, pooling=pooling, batch_size=batch_size)):
            echo_data(line)
        sys.stdout.flush()
