"""`electra export`: a pre-trained or fine-tuned model as a folder that transformers loads."""

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
    "--format", "kind", type=click.Choice(["hf", "onnx"]), default="hf", show_default=True, help="File format."
)
def command(run: Path, out: Path, part: Literal["discriminator", "generator"], kind: str) -> None:
    """Write the model of RUN (a run folder, one of its checkpoints, any model folder) for transformers.

    Of a fine-tuning run it is the seed with the median score.
    """
    from electra.errors import ConfigError

    if kind != "hf":
        raise ConfigError("--format", f"{kind} is not available in this version", fix="use hf")
    from electra.finetune.export import export

    made = export(run, out, part=part)
    echo(f"{out}: {made.architecture}, {made.parameters:,} parameters, from {made.path}")
