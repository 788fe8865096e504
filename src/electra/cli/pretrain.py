"""`electra pretrain`: prepared data in, a run folder out; running it again resumes."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.config import FILE, OVERRIDES, PRESET
from electra.cli.lines import echo


@click.command("pretrain")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder written by `electra prepare`.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run folder to make or to resume.")
@click.option(
    "--from",
    "model",
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="Go on from this model: a run, an export, or a transformers ELECTRA folder.",
)
@click.option(
    "--generator", type=click.Path(path_type=Path), metavar="HF_DIR", help="The generator of --from's folder."
)
@PRESET
@FILE
@OVERRIDES
def command(
    data: Path,
    out: Path,
    model: Path | None,
    generator: Path | None,
    preset: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Pre-train an encoder. Running the same command again resumes exactly where it stopped.

    Any option is a KEY=VALUE: train.steps=2000, train.max_minutes=60, optim.lr=3e-4, seed=1;
    `electra config show --help-keys` lists them all.
    """
    from electra.interop.continuation import config_of_run

    config = config_of_run(out, model=model, generator=generator, preset=preset, file=file, overrides=overrides)
    from electra.hardware import process_began
    from electra.pretrain import pretrain

    run = pretrain(config, data=data, out=out, began=process_began())
    echo(f"done: {run}  (next: electra export {run} --out DIR, electra detect --model {run} TEXT)")
