"""Fine-tuning put together: a model folder and a task's files in, models and results out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust, change, given_keys
from electra.errors import ConfigError, DataError
from electra.finetune.batching import subset
from electra.finetune.paper_settings import settings_for_rows, with_span_head
from electra.finetune.pretrained import Pretrained, check_length, default_model, load_pretrained, settings_for
from electra.finetune.suite import Plan, run_task
from electra.finetune.task_results import Suite, TaskResult
from electra.fsio import require_writable
from electra.interop.finetuned_folder import is_finetuned
from electra.tasks.columns import Columns
from electra.tasks.glue_files import find_tasks, has_split, read_glue, require_trainable
from electra.tasks.glue_tasks import glue_task
from electra.tasks.named_tasks import OWN, find_files, kind_of, load_task
from electra.tasks.task import Task
from electra.tasks.task_data import load_glue

FROM_MNLI = ("rte", "stsb", "mrpc")  # the tasks that the paper starts from the MNLI model


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How many runs, from which weights, and which settings differ from the paper's."""

    seeds: int = 1
    together: int = 0
    """Seeds trained side by side on a GPU; 0: as many as pay off."""
    untrained: bool = False
    """Start from fresh weights, to see what pre-training brings."""
    file: Path | None = None
    """TOML with changed keys."""
    settings: Sequence[str] = ()
    """`key=value`, after the file."""


def finetune_task(
    name: str,
    *,
    model: Path | None,
    out: Path,
    data: Path | None = None,
    train: Path | None = None,
    dev: Path | None = None,
    columns: Columns | None = None,
    title: str | None = None,
    options: Options | None = None,
) -> TaskResult:
    """The result of the task of this name over all seeds; models and results are in `out`.

    The task's files are in the folder `data`, or are `train` and `dev`; `data` or `train` alone may be one file, of
    which a part is held out.
    """
    kind, options = kind_of(name), options or Options()
    files = find_files(name, data=data, train=train, dev=dev)
    require_writable(out)
    base = _load(model, options)
    given = given_keys(FinetuneConfig, file=options.file, overrides=options.settings)
    paper = settings_for(base, name, kind=kind)
    config = change(paper, given)
    if kind == "span" and "null_threshold" not in given:
        config = with_span_head(config, config.span_head)
    check_length(base, config.length)
    loaded = load_task(name, files, title=title, columns=columns or Columns(), tokenizer=base.tokenizer, config=config)
    if name in OWN and given.get("eval_every") != 0:
        rows = subset(loaded.train, config.max_train_rows, seed=0).count
        asked = {"epochs": given.get("epochs"), "batch_size": given.get("batch_size")}
        config = change(settings_for_rows(paper, rows, kind=kind, **asked), given)
    plan = Plan(
        config=config,
        seeds=tuple(range(config.seed, config.seed + options.seeds)),
        together=options.together,
    )
    return run_task(base, loaded, plan=plan, out=out, folder=out)


def finetune_glue(
    *,
    model: Path | None,
    data: Path,
    out: Path,
    tasks: Sequence[str] = (),
    save: bool = False,
    mnli_init: bool = False,
    options: Options | None = None,
) -> Suite:
    """The results of GLUE tasks, by default of all that `data` holds.

    `save` saves the models too. `mnli_init` starts RTE, STS-B and MRPC from the model fine-tuned on MNLI.
    """
    options = options or Options()
    chosen = _glue_tasks(data, tasks)
    require_writable(out)
    if mnli_init:
        chosen.sort(key=lambda task: task.name != "mnli")
    base = _load(model, options)
    suite = Suite()
    _require_whole(chosen, data)
    for task in chosen:
        start = _after_mnli(base, out / "mnli") if mnli_init and task.name in FROM_MNLI else base
        config = adjust(settings_for(start, task.name, kind=task.kind), file=options.file, overrides=options.settings)
        check_length(start, config.length)
        loaded = load_glue(task, data, tokenizer=start.tokenizer, config=config)
        plan = Plan(
            config=config,
            seeds=tuple(range(config.seed, config.seed + options.seeds)),
            together=options.together,
            save=save or (mnli_init and task.name == "mnli"),
        )
        suite = suite.with_result(run_task(start, loaded, plan=plan, out=out, folder=out / task.name))
    return suite


def _load(model: Path | None, options: Options) -> Pretrained:
    base = load_pretrained(model or default_model())
    return base.untrained() if options.untrained else base


def _glue_tasks(data: Path, names: Sequence[str]) -> list[Task]:
    if names:
        return [glue_task(name) for name in names]
    found = [task for task in find_tasks(data) if has_split(task, data, "train")]
    if not found:
        raise DataError(data, "holds no GLUE task", fix="give the folder that holds CoLA, RTE, ...")
    return found


def _require_whole(tasks: Sequence[Task], data: Path) -> None:
    """Refuse a missing or damaged file of any task now: the last one's turn may come hours later."""
    for task in tasks:
        require_trainable(task, data)
    for task in tasks[1:]:  # the first one's are read next
        for split in (*task.splits, *task.tests):
            if has_split(task, data, split):
                read_glue(task, data, split)


def _after_mnli(base: Pretrained, folder: Path) -> Pretrained:
    """The model that MNLI left in its folder, under a name that says so."""
    if not is_finetuned(folder):
        reason = f"{folder} holds no model fine-tuned on MNLI"
        raise ConfigError("--mnli-init", reason, fix="let --tasks name mnli too, in a new folder")
    start = load_pretrained(folder)
    return replace(start, name=f"{base.name} after MNLI, {start.name}")
