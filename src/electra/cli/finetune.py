"""`electra finetune`: one task, from a pre-trained folder to scores over seeds and a model that answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.config import FILE, OVERRIDES
from electra.errors import ConfigError, suggest

if TYPE_CHECKING:
    from electra.config.finetune import FinetuneConfig
    from electra.finetune.base import Base
    from electra.finetune.jobs import Job

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SQUAD: dict[str, dict[str, tuple[str, ...]]] = {
    "squad": {"train": ("train-v1.1", "train"), "dev": ("dev-v1.1", "dev")},
    "squad2": {"train": ("train-v2.0", "split-train-v2.0", "train"), "dev": ("split-dev-v2.0", "dev-v2.0", "dev")},
    "questions": {"train": ("train",), "dev": ("dev", "valid", "test")},
}
OWN = ("classify", "multilabel", "regress", "tag")
TABLES = (".csv", ".tsv", ".jsonl")
COLUMNS = (".conll", ".txt", ".tsv", ".iob", ".bio")

MODEL = click.option(
    "--model",
    "model",
    required=True,
    type=click.Path(path_type=Path),
    help="A run, a checkpoint, an exported or a transformers ELECTRA folder, or a fine-tuned model.",
)
SEEDS = click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(1), help="How many runs, each with a seed of its own."
)
TOGETHER = click.option(
    "--together",
    default=0,
    type=click.IntRange(0),
    help="Seeds trained side by side on a GPU (default: as many as pay off).",
)
UNTRAINED = click.option("--untrained", is_flag=True, help="Start from fresh weights, to see what pre-training brings.")


@click.command("finetune")
@click.argument("task")
@MODEL
@click.option("--data", type=click.Path(path_type=Path), help="Folder with the task's files.")
@click.option("--train", "train_file", type=click.Path(path_type=Path), help="Training file, instead of --data.")
@click.option("--dev", "dev_file", type=click.Path(path_type=Path), help="File to judge on, instead of --data.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for models and results.")
@click.option("--text", default="text", show_default=True, help="Own tables: column of the text.")
@click.option("--pair", help="Own tables: column of the second text.")
@click.option("--label", default="label", show_default=True, help="Own tables: column of the label.")
@click.option("--separator", default=",", show_default=True, help="Own tables: between the labels of one row.")
@click.option("--name", help="What to call the task in results (default: TASK).")
@SEEDS
@TOGETHER
@UNTRAINED
@FILE
@OVERRIDES
def command(
    task: str,
    model: Path,
    data: Path | None,
    train_file: Path | None,
    dev_file: Path | None,
    out: Path,
    text: str,
    pair: str | None,
    label: str,
    separator: str,
    name: str | None,
    seeds: int,
    together: int,
    untrained: bool,
    file: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Fine-tune a model on a task and judge it; run it again to add missing seeds.

    TASK is a GLUE task (cola sst2 mrpc stsb qqp mnli qnli rte wnli) from the standard GLUE folders, `squad` or
    `squad2`, or your own data: `classify`, `multilabel` and `regress` from CSV or JSONL, `tag` from CoNLL columns,
    `questions` from SQuAD JSON. A folder of your own holds files named train and dev.

    Settings are the paper's for the model's size; change them as KEY=VALUE: lr=1e-4, epochs=5, length=256, seed=10.

    \b
    electra finetune rte --model run --data glue --out rte --seeds 5
    electra finetune classify --model run --data mine --label verdict --out mine-tuned
    """
    known = (*GLUE, *SQUAD, *OWN)
    if task not in known:
        raise ConfigError("task", f"unknown task '{task}'; known are {' '.join(known)}", fix=suggest(task, known))
    from electra.config.load import adjust
    from electra.evaluate.results import Suite
    from electra.evaluate.suite import Plan, run_task
    from electra.evaluate.table import show
    from electra.finetune.base import check_length, load_base, settings_for

    files = _given_files(task, data, train_file, dev_file)
    base = load_base(model)
    if untrained:
        base = base.untrained()
    config = adjust(settings_for(base, task, kind=_kind(task)), file=file, overrides=overrides)
    check_length(base, config)
    if task in GLUE:
        job = _glue(task, data, base, config)
    else:
        columns = {"text": text, "pair": pair, "label": label, "separator": separator}
        job = _own(task, files, name or task, base, config, columns)
    plan = Plan(config=config, seeds=tuple(range(config.seed, config.seed + seeds)), together=together)
    result = run_task(base, job, plan=plan, out=out, folder=out)
    show(Suite(results=(result,)))
    click.echo(f"done: {out}  (next: electra predict --model {out} --input FILE, electra export {out} --out DIR)")


def _kind(task: str) -> Any:
    if task in SQUAD:
        return "span"
    return task if task in OWN else "regress" if task == "stsb" else "classify"


def _given_files(task: str, data: Path | None, train_file: Path | None, dev_file: Path | None) -> dict[str, Path]:
    from electra.finetune.jobs import split_files

    if train_file is not None or dev_file is not None:
        if train_file is None or dev_file is None or task in GLUE:
            reason = "GLUE tasks are read from --data" if task in GLUE else "go together"
            raise ConfigError("--train and --dev", reason, fix="give both, or --data")
        return {"train": train_file, "dev": dev_file}
    if data is None:
        raise ConfigError("--data", "is missing", fix="give a folder, or --train FILE --dev FILE")
    if task in GLUE:
        return {}
    if task in SQUAD:
        return split_files(data, suffixes=(".json",), names=SQUAD[task])
    return split_files(data, suffixes=COLUMNS if task == "tag" else TABLES)


def _glue(task: str, data: Path | None, base: Base, config: FinetuneConfig) -> Job:
    from electra.finetune.glue_tasks import glue_task
    from electra.finetune.jobs import glue_job

    assert data is not None
    return glue_job(glue_task(task), data, tokenizer=base.tokenizer, config=config)


def _own(
    task: str, files: dict[str, Path], name: str, base: Base, config: FinetuneConfig, columns: dict[str, Any]
) -> Job:
    from electra.finetune.jobs import question_job, table_job, tagging_job

    if task in SQUAD:
        return question_job(name, files, tokenizer=base.tokenizer, config=config)
    if task == "tag":
        return tagging_job(name, files, tokenizer=base.tokenizer, config=config)
    return table_job(name, files, kind=_kind(task), tokenizer=base.tokenizer, config=config, **columns)
