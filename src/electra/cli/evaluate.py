"""`electra evaluate`: the results that a folder holds, or a model's scores on a labelled file."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.lines import echo
from electra.terminal import json_text


@click.command("evaluate")
@click.argument("run", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--text", metavar="COL", help="With FILE: column of the text.  [as in fine-tuning]")
@click.option("--pair", metavar="COL", help="With FILE: column of the second text.  [as in fine-tuning]")
@click.option(
    "--label",
    "--score",
    "label",
    metavar="COL",
    help="With FILE: column of the label, of pairs the graded score.  [as in fine-tuning]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="JSON", help="With FILE: write the evaluation there too."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    run: Path,
    file: Path | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """The scores in RUN (of `electra finetune` or `electra glue`), or those of MODEL on the labelled rows of FILE.

    RUN: every seed, median, mean, spread and averages, computed from the seeds' scores.

    FILE is a table, CoNLL columns or SQuAD JSON, as in fine-tuning. What you get: precision, recall and F1 of each
    class, which classes are confused, and the worst errors. Of pairs: the correlation of cosine and score, or without
    scores how often a text finds its own among all second texts of the file.

    \b
    electra evaluate reviews-model
    electra evaluate reviews-model new.csv
    """
    if file is None:
        for option, value in {"--text": text, "--pair": pair, "--label": label, "--out": out}.items():
            if value is not None:
                raise click.UsageError(f"{option} needs a FILE to evaluate on")
        _show_results(run, as_json=as_json)
        return
    from electra.finetune.evaluation_table import evaluation_lines, score_line
    from electra.finetune.model_folder import load_finetuned
    from electra.fsio import write_json
    from electra.inference.evaluate_file import evaluate_file
    from electra.inference.predict import on_device
    from electra.tasks.columns import Columns

    loaded = on_device(load_finetuned(run))
    found = evaluate_file(loaded, file, columns=Columns(text=text, pair=pair, label=label))
    if out is not None:
        write_json(out, found)
    if as_json:
        echo(json_text(found, indent=2))
        return
    for line in [score_line(found), *evaluation_lines(found)]:
        echo(line)


def _show_results(run: Path, *, as_json: bool) -> None:
    from electra.finetune.results_file import to_json
    from electra.finetune.results_table import show
    from electra.finetune.suite import results_of

    suite = results_of(run)
    if as_json:
        echo(json_text(to_json(suite), indent=2))
    else:
        show(suite)
