"""`electra push`: an exported folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo


@click.command("push")
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--public", is_flag=True, help="Let everybody see a repository that this makes.  [only you]")
@click.option("--dry-run", is_flag=True, help="List what would be sent, and send nothing.")
def command(folder: Path, repository: str, public: bool, dry_run: bool) -> None:
    """Send FOLDER, which `electra export` wrote, to the repository OWNER/NAME of the Hugging Face hub.

    It goes through huggingface_hub, with the token that `hf auth login` stored. A new repository is private. No other
    command uploads a model.
    """
    from electra.interop.push import plan_push, push

    plan = plan_push(folder, repository, public=public)
    if dry_run:
        for name in plan.files:
            echo(name)
        echo(f"would send {plan}")
        return
    echo(f"sending {plan}", err=True)
    echo(push(plan))
