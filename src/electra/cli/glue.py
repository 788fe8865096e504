"""`electra glue`: every GLUE task in a folder, and the average that the paper prints."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.config import FILE, OVERRIDES
from electra.cli.finetune import MODEL, SEEDS, TOGETHER, UNTRAINED, WithKeys
from electra.cli.lines import command_line, echo


@click.command("glue", cls=WithKeys)
@MODEL
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder with the GLUE tasks' folders.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for results and predictions.")
@click.option("--tasks", help="Only these, separated by commas: cola,rte (default: all that are there).")
@click.option("--save", is_flag=True, help="Save every fine-tuned model, not only scores and predictions.")
@click.option("--mnli-init", is_flag=True, help="Start RTE, STS-B and MRPC from the model fine-tuned on MNLI.")
@SEEDS
@TOGETHER
@UNTRAINED
@FILE
@OVERRIDES
def command(
    model: Path | None,
    data: Path,
    out: Path,
    tasks: str | None,
    save: bool,
    mnli_init: bool,
    seeds: int,
    together: int,
    untrained: bool,
    file: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Fine-tune a model on every GLUE task found; run it again to continue.

    Settings are the paper's for the model's size and each task; KEY=VALUE changes them for every task. Files for the
    GLUE leaderboard are written where the folder has test sets, from the seed with the median score.
    """
    import time

    from electra.finetune.results_table import show
    from electra.finetune.task_run import Options, finetune_glue
    from electra.progress import clock, counted, say

    began = time.monotonic()
    suite = finetune_glue(
        model=model,
        data=data,
        out=out,
        tasks=[name.strip() for name in tasks.split(",")] if tasks else (),
        save=save,
        mnli_init=mnli_init,
        options=Options(seeds=seeds, together=together, untrained=untrained, file=file, settings=overrides),
    )
    show(suite)
    say(f"{counted(len(suite.results), 'task')}, {counted(seeds, 'seed')} each, in {clock(time.monotonic() - began)}")
    echo(f"done: {out}  (again at any time: {command_line('evaluate', out)})")
