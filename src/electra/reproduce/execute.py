"""An experiment run: what is missing is trained, fine-tuned and scored; the same call again continues.

The folder: `runs/NAME/` are pre-training runs, `scores/NAME/` their fine-tuned scores, `task/` the task made of the
corpus where there is no other, `results.json` and `table.md` what was found so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from electra import hardware
from electra.checkpoint.folder import FACTS, read_facts, storage
from electra.errors import ConfigError, DataError, Diverged
from electra.fsio import sha256_file, write_atomic, write_json
from electra.pretrain import pretrain
from electra.progress import say
from electra.reproduce import passages
from electra.reproduce.comparison_table import markdown
from electra.reproduce.experiment import Budget, Experiment
from electra.reproduce.experiments import experiment
from electra.reproduce.outcome import Outcome, write_outcome
from electra.reproduce.outcome_rows import rows_of
from electra.reproduce.plan import Planned, left_out, plan
from electra.reproduce.reuse import REQUEST, RUNS, read_request, take_over
from electra.reproduce.scale import Scale, changed_scale, changes, scale_named
from electra.reproduce.scorer import TASK, Scorer
from electra.reproduce.watch import step_reached, watched
from electra.reproduce.workers import Worker, side_by_side
from electra.shards.dataset import open_data
from electra.shards.format import MANIFEST
from electra.tasks.glue_files import has_split
from electra.tasks.glue_tasks import glue_task

LOGS, TABLE, DIVERGED = "logs", "table.md", "diverged.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for."""

    experiment: Experiment
    scale: Scale
    data: Path
    out: Path
    glue: Path | None
    overrides: tuple[str, ...]
    budget: Budget
    planned: tuple[Planned, ...]
    scorer: Scorer

    def run(self, planned: Planned) -> Path:
        """The folder of a configuration's pre-training run."""
        return self.out / RUNS / planned.name


def make_request(
    name: str,
    *,
    data: Path,
    scale: str,
    out: Path,
    glue: Path | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    budget: Budget | None = None,
    tokens: int | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] = (),
    rows: int | None = None,
) -> Request:
    """The experiment with every configuration checked; nothing is written.

    `tokens`, `seeds`, `tasks` and `rows` replace the scale's.
    """
    chosen = experiment(name)
    _check_tasks(tasks, glue)
    size = changed_scale(scale_named(scale), tokens=tokens, seeds=seeds, tasks=tasks, rows=rows)
    vocab = open_data(data, verify=False).vocab_size
    planned = plan(chosen, size, vocab_size=vocab, overrides=overrides, budget=budget, only=only)
    return Request(
        experiment=chosen,
        scale=size,
        data=data,
        out=out,
        glue=glue,
        overrides=tuple(overrides),
        budget=budget or chosen.budget,
        planned=tuple(planned),
        scorer=Scorer(experiment=chosen, scale=size, out=out, glue=glue),
    )


def claim(request: Request) -> None:
    """Note what the folder is for, or check that it is for this, and put the task there that is made of the corpus."""
    prepared = open_data(request.data)
    with storage(request.out):
        if check_claim(request):
            write_json(request.out / REQUEST, asked(request))
        if request.glue is None:
            passages.write_task(request.out / TASK, prepared, rows=request.scale.task_rows)


def check_claim(request: Request) -> bool:
    """Whether the folder is still free; ConfigError where it holds another experiment."""
    if not (request.out / REQUEST).is_file():
        return True
    there = read_request(request.out)
    now = asked(request).items()
    changed = [f"{key} {there.get(key)!r}, now {value!r}" for key, value in now if there.get(key) != value]
    if changed:
        reason = f"{request.out} holds another experiment: {'; '.join(changed)}"
        raise ConfigError("--out", reason, fix="choose a new folder, or give the same arguments")
    return False


def asked(request: Request) -> dict[str, Any]:
    """What experiment.json says of a request."""
    return {
        "format": 1,
        "experiment": request.experiment.name,
        "scale": request.scale.name,
        "budget": request.budget,
        "changes": changes(request.scale),
        "overrides": sorted(request.overrides),
        "tasks": list(request.scorer.tasks),
        "data_sha256": sha256_file(request.data / MANIFEST),
    }


def _check_tasks(tasks: Sequence[str], glue: Path | None) -> None:
    """Refuse tasks that could not be scored, rather than leave them out."""
    if tasks and glue is None:
        raise ConfigError("--tasks", "names GLUE tasks, and there is no --glue", fix="--glue FOLDER, or no --tasks")
    for task in map(glue_task, tasks):
        if glue is not None and not has_split(task, glue, "train"):
            raise DataError(glue, f"{task.title} has no train file", fix="another folder, or other --tasks")


def reproduce(request: Request, *, together: int | None = None, reuse: Sequence[Path] = ()) -> Outcome:
    """Run what is missing in the claimed folder and write down what was found; Diverged where a configuration did.

    On GPUs `together` configurations run side by side, each in a process of its own; on a CPU one after another,
    unless more are asked for. Runs of the very same settings are taken from the experiments in `reuse`.
    """
    with storage(request.out):
        for one in request.planned:
            take_over(one, out=request.out, ours=asked(request), scorer=request.scorer, folders=reuse)
    for name in without_time(request):
        say(f"left out, as {request.scale.name} has no time for it: {name} (--only {name} runs it)")
    todo = [one for one in request.planned if not finished(request, one)]
    if len(todo) < len(request.planned):
        say(f"{len(request.planned) - len(todo)} of {len(request.planned)} configurations are already there")
    if todo:
        title = f"reproduce {request.experiment.name}"
        with watched(title, len(request.planned), lambda: sum(progress_of(request, one) for one in request.planned)):
            device = hardware.device(todo[0].config.train.device)
            at_once = count_at_once(request, device, together)
            if device.type == "cpu" and at_once == 1:
                for one in todo:
                    work(request, one)
                    summarise(request)
            else:
                workers = [Worker(name=one.name, arguments=_arguments(request, one)) for one in todo]
                logs = request.out / LOGS
                for _ in side_by_side(workers, logs=logs, together=at_once, gpus=torch.cuda.device_count()):
                    summarise(request)
    outcome = summarise(request)
    if outcome.diverged:
        raise Diverged(f"diverged: {', '.join(outcome.diverged)}; the other configurations are in {request.out}")
    return outcome


def count_at_once(request: Request, device: torch.device, together: int | None) -> int:
    """How many configurations run side by side; `together` where it was asked for."""
    usual = 1 if device.type == "cpu" else request.scale.together * max(1, torch.cuda.device_count())
    return together or usual


def without_time(request: Request) -> list[str]:
    """The configurations that do not fit into the scale's time and were not asked for by name."""
    planned = [one.name for one in request.planned]
    skipped = left_out(request.experiment, request.scale, overrides=request.overrides)
    return [name for name in skipped if name not in planned]


def work(request: Request, planned: Planned) -> None:
    """Pre-train one configuration and score it, as far as that is not done; a divergence is noted and left at that."""
    run, scorer = request.run(planned), request.scorer
    if finished(request, planned):
        return
    say(f"{planned.variant.title}: {planned.config.train.steps:,} steps, {_changes(planned)}")
    try:
        pretrain(planned.config, data=request.data, out=run)
    except Diverged as error:
        write_atomic(run / DIVERGED, f"{error}\n".encode())
        say(f"warning: {planned.variant.title} diverged: {error}")
        return
    scorer.score(planned, run=run)


def summarise(request: Request) -> Outcome:
    """Write results.json and table.md of what is finished, this time's configurations and earlier ones."""
    scorer = request.scorer
    everything = _everything(request)
    ready = [one for one in everything if _scored(request, scorer, one)]
    diverged = [one.name for one in everything if (request.run(one) / DIVERGED).is_file()]
    asked = [one.name for one in request.planned]
    outcome = Outcome(
        experiment=request.experiment.name,
        scale=request.scale.name,
        budget=request.budget,
        seeds=scorer.seeds,
        rows=tuple(row for one in ready for row in rows_of(one, run=request.run(one), scorer=scorer)),
        missing=tuple(name for name in asked if name not in [*diverged, *(one.name for one in ready)]),
        diverged=tuple(diverged),
        left_out=tuple(one.name for one in everything if one not in ready and one.name not in [*asked, *diverged]),
        overrides=request.overrides,
        changes=tuple(changes(request.scale)),
        device=hardware.machine_of(read_facts(request.run(ready[0]) / FACTS)) if ready else "",
    )
    with storage(request.out):
        write_outcome(request.out, outcome)
        write_atomic(request.out / TABLE, markdown(outcome).encode())
    return outcome


def progress_of(request: Request, planned: Planned) -> float:
    """About how much of a configuration's work is done, from 0 to 1."""
    scorer, weight = request.scorer, request.scale.finetune_time
    if (request.run(planned) / DIVERGED).is_file():
        return 1.0
    trained = min(1.0, step_reached(request.run(planned)) / planned.config.train.steps)
    wanted = scorer.wanted(planned)
    return (1 - weight) * trained + weight * (wanted - scorer.missing(planned)) / wanted


def _scored(request: Request, scorer: Scorer, planned: Planned) -> bool:
    return not scorer.missing(planned) and step_reached(request.run(planned)) > 0


def finished(request: Request, planned: Planned) -> bool:
    """Whether a configuration is trained and scored, or has diverged."""
    return _scored(request, request.scorer, planned) or (request.run(planned) / DIVERGED).is_file()


def _everything(request: Request) -> list[Planned]:
    """Every configuration of the experiment: the folder may hold others than those asked for now."""
    vocab = request.planned[0].config.model.vocab_size
    scale = replace(request.scale, fits=0)
    return plan(request.experiment, scale, vocab_size=vocab, overrides=request.overrides, budget=request.budget)


def _arguments(request: Request, planned: Planned) -> list[str]:
    """The command line of a worker that does one configuration."""
    arguments = ["reproduce", request.experiment.name, "--data", str(request.data), "--scale", request.scale.name]
    arguments += ["--out", str(request.out), "--budget", request.budget, "--only", planned.name, "--worker"]
    arguments += ["--glue", str(request.glue)] if request.glue is not None else []
    return [*arguments, *(part for text in changes(request.scale) for part in text.split(" ", 1)), *request.overrides]


def _changes(planned: Planned) -> str:
    return " ".join(planned.variant.overrides) or "no changes"
