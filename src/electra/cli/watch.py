"""`electra watch`: a run in the terminal, while another process trains it or afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import echo

if TYPE_CHECKING:
    from electra.tracking.terminal_view import RunView


@click.command("watch")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show where it stands, and end.")
def command(run: Path, once: bool) -> None:
    """Follow a pre-training run: step, losses, speed, time left, the last evaluation with a sample.

    It ends with the run; Ctrl-C ends it before, and the run goes on. Where the output is no terminal, every line of
    metrics is printed as it comes.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from electra.tracking.terminal_view import log_lines, watch

    console = Console()
    if once or not console.is_terminal:
        last: RunView | None = None

        def print_lines(view: RunView, lines: list[dict[str, Any]]) -> None:
            nonlocal last
            if view.state == "training" and not once:
                for line in log_lines(lines):
                    echo(line)
            last = view

        watch(run, show=print_lines, once=once)
        assert last is not None
        echo("\n".join(last.lines(console.width if console.is_terminal else 10**6)))
        return
    with Live(console=console, auto_refresh=False) as live:

        def draw(view: RunView, lines: list[dict[str, Any]]) -> None:
            text = Text("\n".join(view.lines(console.width)), no_wrap=True, overflow="ellipsis")
            live.update(text, refresh=True)

        watch(run, show=draw, once=False)
