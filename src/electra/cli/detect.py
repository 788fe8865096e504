"""`electra detect`: the tokens of a text that look replaced."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from electra.cli.lines import echo, typed, waiting_lines
from electra.terminal import json_text

if TYPE_CHECKING:
    from electra.inference.results import Detection


@click.command("detect")
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="M", help="Run or model folder.  [the package's largest]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a text, on a line of its own.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Mark from this probability on."
)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
def command(model: Path | None, as_json: bool, threshold: float, texts: tuple[str, ...]) -> None:
    """Mark the tokens of each TEXT, or of each line of standard input, that look replaced."""
    if not texts and sys.stdin.isatty():
        raise click.UsageError("give a TEXT, or lines on standard input")
    from electra.finetune.pretrained import default_model
    from electra.inference.detect import detect
    from electra.interop.models import load_model

    given = typed(texts)
    loaded = load_model(model or default_model())
    for text in given or (line for lines in waiting_lines() for line in lines):
        detection = detect(loaded, text, threshold=threshold)
        if as_json:
            echo(json_text(asdict(detection)))
        else:
            _show(detection)
            if note := nothing_flagged(detection, threshold=threshold):
                echo(note, err=True)
        sys.stdout.flush()


def nothing_flagged(detection: Detection, *, threshold: float) -> str:
    """Where no token is marked: that, and the likeliest one; otherwise an empty string."""
    if not detection.highest:
        return ""
    probability = max(token.probability for token in detection.tokens)
    marks = f"--threshold {int(probability * 100) / 100:g} marks it"
    return f"no token reaches {threshold:g}; {detection.highest} ({marks})"


def _show(detection: Detection) -> None:
    """Colour on a terminal that has it, marks elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        if console.color_system is not None and not console.no_color:
            console.print(coloured(detection), soft_wrap=True)
            return
    echo(detection.marked)


def coloured(detection: Detection) -> object:
    """The text as rich draws it: flagged tokens on red, their probability behind them."""
    from rich.text import Text

    from electra.inference.results import marked_pieces

    drawn = Text()
    for piece, probability in marked_pieces(detection.text, detection.tokens):
        drawn.append(piece, style=None if probability is None else "bold white on red")
        if probability is not None:
            drawn.append(f" {probability:.2f}", style="dim")
    return drawn
