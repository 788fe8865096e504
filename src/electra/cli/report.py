"""`electra report`: folders of runs as one page."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo


@click.command("report")
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The page (default: report.html in RUN; here for several)."
)
def command(folders: tuple[Path, ...], out: Path | None) -> None:
    """One page about folders of `pretrain`, `finetune`, `glue`, `reproduce` or `demo`: did it work?

    Several are compared: curves overlaid, scores side by side, settings that differ. The page is one file; it loads
    nothing and runs no script.
    """
    from electra.report.answers import answer_to
    from electra.report.page import default_page, read_folders, write_page

    subjects = read_folders(folders)
    page = write_page(subjects, out or default_page(folders))
    echo(str(answer_to(subjects)))
    echo(f"page: {page}")
