"""`electra finetune`: one task, from a pre-trained folder to scores over seeds and a model that predicts."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from electra.cli.config import FILE
from electra.cli.lines import echo, next_lines

MODEL = click.option(
    "--model",
    "model",
    type=click.Path(path_type=Path),
    help="A run, a checkpoint, an exported or a transformers ELECTRA folder, a hub name, or a fine-tuned model."
    "  [the package's largest]",
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


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, and the keys of fine-tuning that begin so, for the shell."""
    from electra.config.finetune import FinetuneConfig
    from electra.config.keys import describe

    keys = [CompletionItem(f"{one.key}=", help=one.help) for one in describe(FinetuneConfig)]
    return [CompletionItem(incomplete, type="file"), *(one for one in keys if one.value.startswith(incomplete))]


class WithKeys(click.Command):
    """A command whose help ends with the keys of fine-tuning."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The keys, each with its default and meaning."""
        from electra.config.finetune import FinetuneConfig
        from electra.config.keys import describe, toml_value

        with formatter.section("Keys (KEY=VALUE; these defaults change with the model's size and the task)"):
            rows = [
                (f"{one.key}={toml_value(one.default).strip(chr(34))}", one.help) for one in describe(FinetuneConfig)
            ]
            formatter.write_dl(rows)


@click.command("finetune", cls=WithKeys)
@click.argument("task")
@MODEL
@click.option("--data", type=click.Path(path_type=Path), help="Folder with the task's files, instead of FILE.")
@click.option("--train", "train_file", type=click.Path(path_type=Path), help="Training file, instead of FILE.")
@click.option("--dev", "dev_file", type=click.Path(path_type=Path), help="File to evaluate on, beside --train.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for models and results.  [of FILE: FILE-model]")
@click.option("--text", help="Own tables: column of the text.  [text, or guessed]")
@click.option("--pair", help="Own tables: column of the second text.")
@click.option("--label", "--score", "label", help="Own tables: column of the label, of pairs the graded score.")
@click.option("--negative", help="Own pairs: column of a text that looks right and is not.")
@click.option("--separator", default=",", show_default=True, help="Own tables: between the labels of one row.")
@click.option("--name", help="What to call the task in results (default: TASK).")
@SEEDS
@TOGETHER
@UNTRAINED
@FILE
@click.argument("arguments", nargs=-1, metavar="[FILE] [KEY=VALUE]...", shell_complete=_complete)
def command(
    task: str,
    model: Path | None,
    data: Path | None,
    train_file: Path | None,
    dev_file: Path | None,
    out: Path | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    negative: str | None,
    separator: str,
    name: str | None,
    seeds: int,
    together: int,
    untrained: bool,
    file: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Fine-tune a model on a task and evaluate it; run it again to add missing seeds.

    TASK is `classify`, `multilabel` or `regress` for a CSV, TSV, JSONL or Parquet table of your own, `pairs` for one of
    texts that belong together, `tag` for CoNLL columns, `questions` for SQuAD JSON, a GLUE task (cola sst2 mrpc stsb
    qqp mnli qnli rte wnli) from the standard GLUE folders, `squad` or `squad2`. Of a single FILE a part is held out to
    evaluate on; a folder (--data) holds files named train and dev.

    Settings are the paper's for the model's size; change them as KEY=VALUE: lr=1e-4, epochs=5, length=256, seed=10.

    \b
    electra finetune classify reviews.csv
    electra finetune pairs faq.csv --text question --pair answer
    electra finetune rte --model run --data glue --out rte --seeds 5
    """
    from electra.finetune.results_table import show
    from electra.finetune.task_results import Suite
    from electra.finetune.task_run import Options, finetune_task
    from electra.tasks.columns import Columns
    from electra.tasks.named_tasks import find_files

    require_task(task)
    single, settings = split_arguments(arguments)
    folder = _folder(out, single, data, task=task, split=train_file or dev_file)
    result = finetune_task(
        task,
        model=model,
        out=folder,
        data=single or data,
        train=train_file,
        dev=dev_file,
        columns=Columns(text=text, pair=pair, label=label, negative=negative, separator=separator),
        title=name,
        options=Options(seeds=seeds, together=together, untrained=untrained, file=file, settings=settings),
    )
    show(Suite(results=(result,)))
    _show_evaluation(folder)
    echo(f"done: {folder}")
    example = single or dev_file or find_files(task, data=data, train=train_file, dev=dev_file).get("dev")
    for line in next_lines(*_next(folder, example, pairs=task == "pairs")):
        echo(line)


def require_task(name: str) -> None:
    """Refuse a file where the task belongs."""
    from electra.corpus.streams import plain_suffix

    suffix = plain_suffix(Path(name))
    if suffix or Path(name).is_file():
        task = {".conll": "tag", ".json": "questions"}.get(suffix, "classify")
        raise click.UsageError(f"the TASK is missing in front of {name}: electra finetune {task} {name}")


def split_arguments(arguments: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """The file among the arguments, if there is one, and the settings."""
    from electra.config.load import refuse_spaces
    from electra.errors import ConfigError, DataError

    refuse_spaces(arguments)
    files = [one for one in arguments if "=" not in one or Path(one).is_file()]
    if not files:
        return None, arguments
    path = Path(files[0])
    if len(files) > 1:
        raise ConfigError(files[1], f"{path} is given already", fix="give one file, or --train and --dev")
    if not path.exists():
        if not path.suffix and len(path.parts) == 1:
            raise ConfigError(files[0], "is neither a file nor key=value", fix="for example seed=1")
        raise DataError(path, "no such file", fix="give a .csv, .tsv, .jsonl or .parquet file")
    return path, tuple(one for one in arguments if one != files[0])


def _show_evaluation(folder: Path) -> None:
    from electra.finetune.evaluation_file import EVALUATION, read_evaluation
    from electra.finetune.evaluation_table import evaluation_lines

    if (folder / EVALUATION).is_file():
        for line in evaluation_lines(read_evaluation(folder / EVALUATION)):
            echo(line)


def _next(folder: Path, example: Path | None, *, pairs: bool) -> list[tuple[str, ...]]:
    """Commands that work as they stand."""
    from electra.cli import COMMANDS

    source = "-" if example is None else str(example)
    commands: list[tuple[str, ...]] = [
        ("predict", "--model", str(folder), "--input", source),
        *([("encode", "--model", str(folder), "--input", source, *_text_column(folder))] if pairs else []),
        ("report", str(folder)),
        ("export", str(folder), "--out", f"{folder}-st", "--format", "sentence-transformers")
        if pairs
        else ("export", str(folder), "--out", f"{folder}-hf"),
    ]
    return [one for one in commands if one[0] in COMMANDS]


def _text_column(folder: Path) -> tuple[str, ...]:
    from electra.finetune.model_folder import load_finetuned

    column = load_finetuned(folder).about.columns.get("text", "text")
    return () if column == "text" else ("--text", column)


def _folder(out: Path | None, single: Path | None, data: Path | None, *, task: str, split: Path | None) -> Path:
    """The folder to write, after looking at which files are given."""
    if single is not None and data is not None:
        raise click.UsageError(f"{single} and --data {data} are both given; give one of them")
    if out is None and single is None and data is None and split is None:
        raise click.UsageError(f"give a FILE: electra finetune {task} FILE; or its folder with --data and --out")
    if out is None and single is None:
        raise click.UsageError("Missing option '--out'.")
    return out or Path(f"{(single or Path()).name.partition('.')[0] or 'own'}-model")
