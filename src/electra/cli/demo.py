"""`electra demo`: from the documentation on this machine to a fine-tuned model and a report, in minutes."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo, program


@click.command("demo")
@click.option(
    "--out", default="demo", show_default=True, type=click.Path(path_type=Path), help="Folder for everything it makes."
)
@click.option("--minutes", type=float, help="Pre-training time (default: 2.6).")
def command(out: Path, minutes: float | None) -> None:
    """From text to a fine-tuned model and a report, in minutes, downloading nothing.

    The text is the documentation already on this machine. Running it again continues where it stopped.
    """
    from electra.demo.demo import MINUTES, demo
    from electra.progress import clock

    result = demo(out, minutes=MINUTES if minutes is None else minutes)
    echo(f"Report: {result.report}")
    echo(f"  Replaced tokens: AUC {result.auc:.3f} on held-out text (0.5 is guessing)")
    echo(
        f"  Which package is this? {result.pretrained:.1%} right with pre-training, {result.untrained:.1%} without"
        f" (chance {result.chance:.1%})"
    )
    if result.pretrained <= result.untrained:
        echo(f"  So short a run does not help yet. To give it more time: {program()} demo --minutes 60 --out demo-60")
    echo(f"  Took {clock(result.seconds)}. Next, with sentences of yours:")
    echo(f'  {program()} detect --model {result.run} "..."')
    echo(f'  echo "..." | {program()} predict --model {result.tuned} --input -')
