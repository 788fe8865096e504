"""`electra evaluate`: the results that a folder holds, as a table."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo
from electra.terminal import json_text


@click.command("evaluate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print results.json's content instead of the table.")
def command(run: Path, as_json: bool) -> None:
    """The scores in RUN (of `electra finetune` or `electra glue`): every seed, median, mean, spread and averages.

    Summaries are computed from the seeds' scores, not read from the file.
    """

    from electra.errors import DataError
    from electra.finetune.results_file import read_results, to_json
    from electra.finetune.results_table import show
    from electra.finetune.seed_folder import RESULTS

    path = run / RESULTS if run.is_dir() else run
    if not path.is_file():
        raise DataError(run, f"has no {RESULTS}", fix="electra finetune or electra glue writes one")
    suite = read_results(path)
    if as_json:
        echo(json_text(to_json(suite), indent=2))
    else:
        show(suite)
