"""`electra import`: a transformers ELECTRA folder, or a TensorFlow checkpoint, as a run of ours."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo

MISSING = {
    "discriminator_head": "no replaced-token head in it: `detect` cannot use it, fine-tuning can",
    "generator": "no generator: fine-tuning and `detect` do not need it; to pre-train on, give --generator",
}


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path), metavar="MODEL")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New run folder to write.")
@click.option(
    "--generator",
    type=click.Path(path_type=Path),
    metavar="HF_DIR",
    help="The generator trained with MODEL.",
)
def command(source: Path, out: Path, generator: Path | None) -> None:
    """Make a run folder of MODEL: a folder that transformers' save_pretrained wrote, a hub name, or a TensorFlow
    checkpoint of google-research/electra (its folder or its prefix), with vocab.txt beside it.

    TensorFlow is not needed: the files are read as data.
    """
    from electra.interop.transfer import import_model

    done = import_model(source, out, generator=generator)
    model, objective = done.config.model, done.config.objective.name
    echo(f"{out}: {len(done.tensors)} tensors, {model.layers} layers x {model.width}, objective {objective}")
    for part in done.missing:
        echo(f"missing: {MISSING[part]}")
    if done.unused:
        echo(f"left out: {', '.join(done.unused)}")
