"""`python -m electra.soak`: campaigns by name, each with a count; exit code 1 where anything failed."""

from __future__ import annotations

import sys

import click

from electra.soak.flips import run_flips
from electra.soak.inputs import run_inputs


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attack the package and count what happens."""


@main.command()
@click.option("--count", default=10_000, show_default=True, type=click.IntRange(1), help="How many inputs.")
@click.option("--seed", default=0, show_default=True, help="Another seed damages them otherwise.")
@click.option("--only", type=click.IntRange(0), help="The number of one input, to repeat it, with the same --count.")
def inputs(count: int, seed: int, only: int | None) -> None:
    """Damaged files of every format: each must be read, or refused in one line."""
    report = run_inputs(count, seed=seed, only=only)
    click.echo("\n".join(report.lines()))
    sys.exit(1 if report.failures else 0)


@main.command()
@click.option("--count", default=1_000, show_default=True, type=click.IntRange(1), help="How many bits.")
@click.option("--seed", default=0, show_default=True, help="Another seed flips others.")
@click.option("--only", type=click.IntRange(0), help="The number of one flip, to repeat it.")
def flips(count: int, seed: int, only: int | None) -> None:
    """Flipped bits in every kind of folder: each is refused, or nothing that comes of the folder differs."""
    report = run_flips(count, seed=seed, only=only)
    click.echo("\n".join(report.lines()))
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
