"""`electra import`: a transformers ELECTRA folder as a run of ours."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo

MISSING = {
    "discriminator_head": "no replaced-token head in the folder: `detect` cannot use it, fine-tuning can",
    "generator": "no generator: fine-tuning and `detect` do not need it; to pre-train on, give --generator",
}


@click.command("import")
@click.argument("hf_dir", type=click.Path(path_type=Path), metavar="HF_DIR")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New run folder to write.")
@click.option(
    "--generator", type=click.Path(path_type=Path), metavar="HF_DIR", help="The generator trained with HF_DIR's model."
)
def command(hf_dir: Path, out: Path, generator: Path | None) -> None:
    """Make a run folder of HF_DIR, a folder that transformers' save_pretrained wrote."""
    from electra.interop.transfer import import_model

    done = import_model(hf_dir, out, generator=generator)
    model, objective = done.config.model, done.config.objective.name
    echo(f"{out}: {done.tensors} tensors, {model.layers} layers x {model.width}, objective {objective}")
    for part in done.missing:
        echo(f"missing: {MISSING[part]}")
    if done.unused:
        echo(f"left out: {', '.join(done.unused)}")
