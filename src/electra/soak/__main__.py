"""`python -m electra.soak`: campaigns by name, each with a count; exit code 1 where anything failed."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from electra.soak.chains import open_arena
from electra.soak.flips import run_flips
from electra.soak.inputs import run_inputs
from electra.soak.kills import run_kills
from electra.soak.report import Report
from electra.soak.signals import run_signals


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attack the package and count what happens."""


@main.command()
@click.option("--count", default=10_000, show_default=True, type=click.IntRange(1), help="How many inputs.")
@click.option("--seed", default=0, show_default=True, help="Another seed damages them otherwise.")
@click.option("--only", type=click.IntRange(0), help="The number of one input, to repeat it, with the same --count.")
def inputs(count: int, seed: int, only: int | None) -> None:
    """Damaged files of every format: each must be read, or refused in one line."""
    _end(run_inputs(count, seed=seed, only=only))


@main.command()
@click.option("--count", default=1_000, show_default=True, type=click.IntRange(1), help="How many bits.")
@click.option("--seed", default=0, show_default=True, help="Another seed flips others.")
@click.option("--only", type=click.IntRange(0), help="The number of one flip, to repeat it.")
def flips(count: int, seed: int, only: int | None) -> None:
    """Flipped bits in every kind of folder: each is refused, or nothing that comes of the folder differs."""
    _end(run_flips(count, seed=seed, only=only))


@main.command()
@click.option("--count", default=200, show_default=True, type=click.IntRange(1), help="How many processes.")
@click.option("--seed", default=0, show_default=True, help="Another seed kills at other moments.")
def kills(count: int, seed: int) -> None:
    """Killed processes, half of them inside a save: the same command ends as an uninterrupted one, byte for byte."""
    with open_arena() as arena:
        _end(run_kills(count, arena, seed=seed))


@main.command()
@click.option("--count", default=100, show_default=True, type=click.IntRange(1), help="How many signals.")
@click.option("--seed", default=0, show_default=True, help="Another seed sends them at other moments.")
def signals(count: int, seed: int) -> None:
    """Signals that ask for an end: one line, exit code 75 or done, and the same command goes on."""
    with open_arena() as arena:
        _end(run_signals(count, arena, seed=seed))


@main.command()
def short() -> None:
    """A few kills and a few signals of three commands: what the tests run."""
    with open_arena(("prepare", "pretrain", "finetune")) as arena:
        _end(run_kills(3, arena), run_signals(3, arena))


def _end(*reports: Report) -> NoReturn:
    """Print what campaigns counted, and leave."""
    for report in reports:
        click.echo("\n".join(report.lines()))
    sys.exit(1 if any(report.failures for report in reports) else 0)


if __name__ == "__main__":
    main()
