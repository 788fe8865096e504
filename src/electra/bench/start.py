"""Start a module of this package as a program."""

from __future__ import annotations

import sys

import click

from electra.errors import ElectraError
from electra.train.interrupt import end_with_parent


def start(command: click.Command) -> None:
    """Run a command on this process's arguments; a failure is one line and its exit code."""
    end_with_parent()
    try:
        command()
    except ElectraError as error:
        click.echo(f"electra: error: {error}", err=True)
        sys.exit(error.exit_code)
