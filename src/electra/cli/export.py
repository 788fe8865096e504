"""`electra export`: a pre-trained or fine-tuned model as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from electra.cli.lines import echo


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New folder to write.")
@click.option(
    "--part",
    type=click.Choice(["discriminator", "generator"]),
    default="discriminator",
    show_default=True,
    help="Which network of the run; one trained with mlm has only one.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["hf", "onnx", "sentence-transformers"]),
    default="hf",
    show_default=True,
    help="Who loads it: transformers, ONNX Runtime, or sentence-transformers.",
)
@click.option("--int8", is_flag=True, help="Add an 8-bit ONNX file, and measure it.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="How sentence-transformers makes one vector of a text.",
)
def command(
    run: Path,
    out: Path,
    part: Literal["discriminator", "generator"],
    form: Literal["hf", "onnx", "sentence-transformers"],
    int8: bool,
    pooling: Literal["mean", "cls"],
) -> None:
    """Write the model of RUN (a run folder, one of its checkpoints, any model folder, a hub name) for other programs.

    Of a fine-tuning run it is the seed with the median score. The folder has a model card, README.md.
    """
    from electra.finetune.export import export

    made = export(run, out, part=part, form=form, int8=int8, pooling=pooling)
    echo(f"{out}: {made.architecture}, {made.parameters:,} parameters, from {made.path}")
    for note in made.notes:
        echo(note)
