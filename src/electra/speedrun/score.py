"""The second half of a speedrun: GLUE-5 over fixed seeds, by the paper's fine-tuning, and the record of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Literal

import torch

from electra import hardware
from electra.checkpoint import store
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust, parse_overrides
from electra.errors import CheckpointError, ConfigError
from electra.finetune.suite import open_suite
from electra.finetune.task_results import GLUE_5, Suite, TaskResult
from electra.finetune.task_run import Options, finetune_glue
from electra.fsio import read_json
from electra.progress import counted
from electra.records import read_record
from electra.report.reading import read_run
from electra.reproduce.scale import CHOICE_SEEDS, REPORT_SEEDS
from electra.reproduce.watch import watched
from electra.reproduce.workers import Worker, side_by_side
from electra.speedrun.alike import settings_of
from electra.speedrun.record import Record, Scores, curve_of, held_out_of, scores_of
from electra.speedrun.train import read_claim
from electra.train.clock import elapsed_seconds
from electra.train.loop import Position

Purpose = Literal["report", "choice"]
SEEDS: dict[Purpose, range] = {"report": REPORT_SEEDS, "choice": CHOICE_SEEDS}
"""Settings are chosen on some fine-tuning seeds and results reported on others: no choice flatters itself."""
SCORES, LOGS = "scores", "logs"
LONGEST_FIRST = ("sst2", "stsb", "cola", "rte", "mrpc")
"""GLUE-5 by its steps, so that no long one begins when the others are done."""
_FIXED = ("max_train_rows", "seed")
_FREE = ("device", "precision", "compile", "kernels", "log_every")  # how it is computed, not what


def score(
    run: Path,
    *,
    glue: Path,
    purpose: Purpose = "report",
    settings: Sequence[str] = (),
    processes: int = 0,
    commit: str | None = None,
) -> Record:
    """The record of a finished speedrun. All rows of GLUE-5; scores are in `run`/scores, and are not run twice.

    `settings` change the paper's fine-tuning and stand in the record. `processes` run at a time, each a task
    with a seed (0: on a GPU one a core). `commit` names the code's where it runs outside a checkout.
    """
    for key in parse_overrides(settings, FinetuneConfig):
        if key in _FIXED:
            raise ConfigError(key, "a speedrun has all rows and fixed seeds", fix="leave it out")
    require_finished(run)
    suite = _finetuned(run, glue=glue, seeds=SEEDS[purpose], settings=settings, processes=processes, purpose=purpose)
    chosen = tuple(text for text in settings if text.partition("=")[0].strip() not in _FREE)
    return record_of(run, scores_of(suite), purpose=purpose, finetune=chosen, commit=commit)


def require_finished(run: Path) -> None:
    """Refuse a folder that is no speedrun, or one whose time is not up."""
    read_claim(run)
    checkpoint = store.latest(run)
    path = None if checkpoint is None else checkpoint / "state.json"
    state = None if path is None else read_record(Position, read_json(path), where=path, error=CheckpointError)
    if state is None or state.step != state.total_steps:
        step = "before its first checkpoint" if state is None else f"at step {state.step:,}"
        raise CheckpointError(
            run, f"has stopped {step}, before its time was up", fix="run `electra speedrun train` again"
        )


def record_of(
    run: Path,
    scores: Scores,
    *,
    purpose: Purpose,
    finetune: tuple[str, ...] = (),
    commit: str | None = None,
    scorer: str = "electra",
) -> Record:
    """The record of a finished speedrun with these scores; of one that was lengthened, its last minutes."""
    claim = read_claim(run)
    read = read_run(run)
    lengthened = tuple(
        f"lengthened from {one['before']:g} to {counted(one['after'], 'minute')} at step {one['step']:,}"
        for one in read.facts.get("lengthened", ())
        if one["key"] == "train.max_minutes"
    )
    return Record(
        entry=claim.entry,
        preset=read.config.preset,
        changes=tuple(claim.changes),
        finetune=finetune,
        minutes=read.config.train.max_minutes,
        seconds=round(elapsed_seconds(run), 1),
        steps=read.cost.steps,
        tokens=read.cost.tokens_read,
        tokens_padded=read.cost.tokens,
        flops_real=read.cost.real_flops,
        flops_paper=read.cost.paper_flops,
        parameters=sum(read.cost.parameters.values()),
        seed=read.config.seed,
        purpose=purpose,
        scores=replace(scores, notes=(*scores.notes, *lengthened)),
        held_out=held_out_of(read),
        curve=curve_of(read),
        device=hardware.machine_of(read.facts),
        data_sha256=str(read.facts.get("data_sha256", "")),
        commit=commit or read.facts.get("git"),
        scorer=scorer,
        text=claim.text,
        settings=settings_of(read.config),
    )


def _finetuned(
    run: Path, *, glue: Path, seeds: Sequence[int], settings: Sequence[str], processes: int, purpose: Purpose
) -> Suite:
    """The results of all tasks over all seeds: in this process, or a process for each task and seed."""
    out = run / SCORES / purpose
    device = hardware.device(adjust(FinetuneConfig(), overrides=settings).device)
    processes = processes or (1 if device.type == "cpu" else hardware.cores())
    if processes == 1:
        options = Options(seeds=len(seeds), settings=[*settings, f"seed={seeds[0]}"])
        return finetune_glue(model=run, data=glue, out=out, tasks=GLUE_5, options=options)
    folders = {(task, seed): out / f"{task}-{seed}" for task in LONGEST_FIRST for seed in seeds}
    shared = ["--model", str(run), "--data", str(glue)]
    workers = [
        Worker(
            name=folder.name,
            arguments=["glue", *shared, "--tasks", task, "--out", str(folder), *settings, f"seed={seed}"],
        )
        for (task, seed), folder in folders.items()
    ]

    def done() -> int:
        return sum(len(open_suite(folder).results) for folder in folders.values())

    with watched("fine-tuning", len(folders), done):
        for _ in side_by_side(workers, logs=out / LOGS, together=processes, gpus=torch.cuda.device_count()):
            pass
    return Suite(results=tuple(_merged([open_suite(folders[task, seed]) for seed in seeds]) for task in GLUE_5))


def _merged(suites: Sequence[Suite]) -> TaskResult:
    """The results of a task's single seeds as one."""

    def merge(a: TaskResult, b: TaskResult) -> TaskResult:
        assert (a.task, a.config, a.rows) == (b.task, b.config, b.rows), "seeds of one model and one setting"
        return reduce(TaskResult.with_run, b.seeds, a)

    return reduce(merge, (result for suite in suites for result in suite.results))
