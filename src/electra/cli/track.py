"""`electra track`: the metrics of a run, of any process and any time, to TensorBoard or Weights & Biases."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo


@click.command("track")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", required=True, type=click.Choice(["tensorboard", "wandb"]), help="Where to show them.")
@click.option("--once", is_flag=True, help="Hand over what is there, and end; otherwise it follows a run that trains.")
def command(run: Path, to: str, once: bool) -> None:
    """Show the metrics of a pre-training run in TensorBoard or Weights & Biases, also when it began without.

    metrics.jsonl is read, nothing in it is changed. Running it again shows the same points, not twice as many.
    """
    from electra.tracking.attach import track

    count = track(run, to=to, follow=not once)
    shown = f"tensorboard --logdir {run}" if to == "tensorboard" else "the page that wandb named"
    echo(f"done: {count:,} lines of {run / 'metrics.jsonl'}  (see: {shown})")
