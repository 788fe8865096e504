"""`electra glue`: every GLUE task at hand, and the average that the paper prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from electra.cli.config import FILE, OVERRIDES
from electra.cli.finetune import MODEL, SEEDS, TOGETHER, UNTRAINED
from electra.errors import ConfigError

if TYPE_CHECKING:
    from electra.finetune.base import Base

FROM_MNLI = ("rte", "stsb", "mrpc")  # the tasks that the paper starts from the MNLI model


@click.command("glue")
@MODEL
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder with the GLUE tasks' folders.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for results and predictions.")
@click.option("--tasks", help="Only these, separated by commas: cola,rte (default: all that are there).")
@click.option("--save", is_flag=True, help="Keep every fine-tuned model, not only scores and predictions.")
@click.option("--mnli-init", is_flag=True, help="Start RTE, STS-B and MRPC from the model fine-tuned on MNLI.")
@SEEDS
@TOGETHER
@UNTRAINED
@FILE
@OVERRIDES
def command(
    model: Path,
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
    GLUE leaderboard are written where test sets are there, from the seed with the median score.
    """
    import time

    from electra.config.load import adjust
    from electra.errors import DataError
    from electra.evaluate.results import Suite
    from electra.evaluate.suite import Plan, run_task
    from electra.evaluate.table import show
    from electra.finetune.base import check_length, load_base, settings_for
    from electra.finetune.glue import find_tasks, has_split
    from electra.finetune.glue_tasks import glue_task
    from electra.finetune.jobs import glue_job
    from electra.progress import clock, say

    began = time.monotonic()
    chosen = [glue_task(name.strip()) for name in tasks.split(",")] if tasks else find_tasks(data)
    chosen = [task for task in chosen if tasks or has_split(task, data, "train")]
    if not chosen:
        raise DataError(data, "holds no GLUE task", fix="give the folder that holds CoLA, RTE, ...")
    if mnli_init:
        chosen.sort(key=lambda task: task.name != "mnli")
    base = load_base(model)
    if untrained:
        base = base.untrained()
    suite = Suite()
    for task in chosen:
        start = base
        if mnli_init and task.name in FROM_MNLI:
            start = _after_mnli(base, out / "mnli")
        config = adjust(settings_for(start, task.name, kind=task.kind), file=file, overrides=overrides)
        check_length(start, config)
        job = glue_job(task, data, tokenizer=start.tokenizer, config=config)
        plan = Plan(
            config=config,
            seeds=tuple(range(config.seed, config.seed + seeds)),
            together=together,
            save=save or (mnli_init and task.name == "mnli"),
        )
        suite = suite.with_result(run_task(start, job, plan=plan, out=out, folder=out / task.name))
    show(suite)
    say(f"{len(suite.results)} tasks, {seeds} seed{'s' * (seeds > 1)} each, in {clock(time.monotonic() - began)}")
    click.echo(f"done: {out}  (again at any time: electra evaluate {out})")


def _after_mnli(base: Base, folder: Path) -> Base:
    """The model that MNLI left in its folder, under a name that says so."""
    from dataclasses import replace

    from electra.finetune.base import load_base
    from electra.finetune.folder import is_tuned

    if not is_tuned(folder):
        reason = f"{folder} holds no model fine-tuned on MNLI"
        raise ConfigError("--mnli-init", reason, fix="let --tasks name mnli too, in a new folder")
    tuned = load_base(folder)
    return replace(tuned, name=f"{base.name} after MNLI, {tuned.name}")
