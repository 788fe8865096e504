"""`electra finetune`: one task, from a pre-trained folder to scores over seeds and a model that predicts."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.config import FILE, OVERRIDES
from electra.cli.lines import echo

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
@click.option("--dev", "dev_file", type=click.Path(path_type=Path), help="File to evaluate on, instead of --data.")
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
    """Fine-tune a model on a task and evaluate it; run it again to add missing seeds.

    TASK is a GLUE task (cola sst2 mrpc stsb qqp mnli qnli rte wnli) from the standard GLUE folders, `squad` or
    `squad2`, or your own data: `classify`, `multilabel` and `regress` from CSV or JSONL, `tag` from CoNLL columns,
    `questions` from SQuAD JSON. A folder of your own holds files named train and dev.

    Settings are the paper's for the model's size; change them as KEY=VALUE: lr=1e-4, epochs=5, length=256, seed=10.

    \b
    electra finetune rte --model run --data glue --out rte --seeds 5
    electra finetune classify --model run --data mine --label opinion --out mine-tuned
    """
    from electra.finetune.results_table import show
    from electra.finetune.task_results import Suite
    from electra.finetune.task_run import Options, finetune_task
    from electra.tasks.named_tasks import Columns

    result = finetune_task(
        task,
        model=model,
        out=out,
        data=data,
        train=train_file,
        dev=dev_file,
        columns=Columns(text=text, pair=pair, label=label, separator=separator),
        title=name,
        options=Options(seeds=seeds, together=together, untrained=untrained, file=file, settings=overrides),
    )
    show(Suite(results=(result,)))
    echo(f"done: {out}  (next: electra predict --model {out} --input FILE, electra export {out} --out DIR)")
