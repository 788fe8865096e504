"""`electra demo`: from the documentation on this machine to a fine-tuned model and a report, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from electra.cli.lines import command_line, echo

if TYPE_CHECKING:
    from electra.demo.demo import DemoResult


@click.command("demo")
@click.option(
    "--out", default="demo", show_default=True, type=click.Path(path_type=Path), help="Folder for everything it makes."
)
@click.option("--minutes", type=float, help="Pre-training time.  [2; from zero 2.6]")
@click.option("--from-zero", is_flag=True, help="Begin with fresh weights and a vocabulary of its own.")
def command(out: Path, minutes: float | None, from_zero: bool) -> None:
    """From text to an adapted and fine-tuned model and a report, in minutes, downloading nothing.

    The model is electra:tiny, which comes with the package; the text is the documentation already on this machine.
    Running it again continues where it stopped.

    From zero, minutes on a CPU show how everything works, not that it pays: half a million tokens teach a model little
    more than how often each token occurs. Expect an AUC near 0.55, and fewer right answers than without pre-training.
    """
    from electra.demo.demo import demo
    from electra.progress import clock

    result = demo(out, minutes=minutes, from_zero=from_zero)
    echo(f"Report: {result.report}")
    for line in _from_zero(result) if from_zero else _adapted(result):
        echo(f"  {line}")
    echo(f"  Took {clock(result.seconds)}. Next, with sentences of yours:")
    echo(f'  {command_line("detect", "--model", result.run)} "..."')
    echo(f'  echo "..." | {command_line("predict", "--model", result.tuned, "--input", "-")}')


def _adapted(result: DemoResult) -> list[str]:
    assert result.bundled is not None
    return [
        f"Replaced tokens: held-out loss {result.loss[0]:.3f} before, {result.loss[1]:.3f} after;"
        f" AUC {result.auc[0]:.3f} before, {result.auc[1]:.3f} after (0.5 is guessing)",
        f"Are the words in order? {result.pretrained:.1%} right with the adapted model, {result.bundled:.1%} with"
        f" electra:tiny as it is, {result.untrained:.1%} without pre-training (chance {result.chance:.1%})",
    ]


def _from_zero(result: DemoResult) -> list[str]:
    lines = [
        f"Replaced tokens: AUC {result.auc[1]:.3f} on held-out text (0.5 is guessing)",
        f"Which package is this? {result.pretrained:.1%} right with pre-training, {result.untrained:.1%} without"
        f" (chance {result.chance:.1%})",
    ]
    if result.pretrained <= result.untrained:
        trained = command_line("demo", "--out", "demo-tiny")
        lines.append(f"So short a run from zero does not help yet. What a trained one brings: {trained}")
    return lines
