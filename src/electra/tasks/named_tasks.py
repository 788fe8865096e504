"""The tasks by the names that people type: which kind each is, where its files are, and its data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError, DataError, suggest
from electra.progress import say
from electra.tasks.columns import LABEL, TEXT, Columns, find_columns, unread_texts
from electra.tasks.glue_tasks import TASKS, glue_task
from electra.tasks.pairs import load_pairs
from electra.tasks.rows import Kind
from electra.tasks.table_rows import FORMATS
from electra.tasks.task_data import TaskData, load_glue, load_questions, load_table, load_tagging
from electra.tokenizer.codec import Tokenizer

GLUE = tuple(task.name for task in TASKS.values() if task.model_of is None)
SQUAD: dict[str, dict[str, tuple[str, ...]]] = {
    "squad": {"train": ("train-v1.1", "train"), "dev": ("dev-v1.1", "dev")},
    "squad2": {"train": ("train-v2.0", "split-train-v2.0", "train"), "dev": ("split-dev-v2.0", "dev-v2.0", "dev")},
    "questions": {"train": ("train",), "dev": ("dev", "valid", "test")},
}
"""File names without their suffix, the likeliest first."""
OWN: dict[str, Kind] = {
    "classify": "classify",
    "multilabel": "multilabel",
    "regress": "regress",
    "tag": "tag",
    "pairs": "pairs",
}
_TAGGING_SUFFIXES = (".conll", ".txt", ".tsv", ".iob", ".bio")


def kind_of(name: str) -> Kind:
    """The kind of the task of this name; an unknown name is refused."""
    known = (*GLUE, *SQUAD, *OWN)
    if name not in known:
        raise ConfigError("task", f"unknown task '{name}'; known are {' '.join(known)}", fix=suggest(name, known))
    if name in SQUAD:
        return "span"
    return OWN[name] if name in OWN else glue_task(name).kind


def find_files(name: str, *, data: Path | None, train: Path | None, dev: Path | None) -> dict[str, Path]:
    """The files of a task: `train` and `dev`, `train` alone where it is to be split, or the GLUE `folder`.

    As named, or as found in `data`, which may also be the one file.
    """
    if train is not None or dev is not None:
        if train is None or name in GLUE:
            reason = "GLUE tasks are read from --data" if name in GLUE else "--dev alone leaves nothing to train on"
            raise ConfigError("--train and --dev", reason, fix="give --train, or --data")
        if data is not None:
            raise ConfigError("--train", f"{data} is given too", fix="give one of them")
        return {"train": train} if dev is None else {"train": train, "dev": dev}
    if data is None:
        raise ConfigError("--data", "is missing", fix="give a file or a folder")
    if name in GLUE:
        return {"folder": data}
    if data.is_file():
        return {"train": data}
    if name in SQUAD:
        return split_files(data, suffixes=(".json",), names=SQUAD[name])
    return split_files(data, suffixes=_TAGGING_SUFFIXES if name == "tag" else FORMATS)


def load_task(
    name: str,
    files: Mapping[str, Path],
    *,
    title: str | None = None,
    columns: Columns,
    tokenizer: Tokenizer,
    config: FinetuneConfig,
) -> TaskData:
    """The data of the task of this name, from the files of `find_files`; `title` renames a task of one's own."""
    if name in GLUE:
        return load_glue(glue_task(name), files["folder"], tokenizer=tokenizer, config=config)
    if name in SQUAD:
        return load_questions(title or name, files, tokenizer=tokenizer, config=config)
    if name == "tag":
        return load_tagging(title or name, files, tokenizer=tokenizer, config=config)
    if columns.negative is not None and name != "pairs":
        raise ConfigError("--negative", f"{name} has no hard negatives", fix="only pairs have")
    if name == "pairs":
        return load_pairs(title or name, files, columns=columns, tokenizer=tokenizer, config=config)
    found = find_columns(files["train"], columns, kind=kind_of(name))
    _say_columns(files["train"], found, asked=columns)
    assert found.text is not None and found.label is not None
    loaded = load_table(
        title or name,
        files,
        kind=kind_of(name),
        text=found.text,
        pair=found.pair,
        label=found.label,
        separator=found.separator,
        tokenizer=tokenizer,
        config=config,
    )
    _say_unread(files["train"], found)
    # Of unequal classes, the accuracy of one answer to everything is hard to beat.
    chosen_by = "macro_f1" if loaded.task.kind == "classify" else ""
    return replace(loaded, task=replace(loaded.task, chosen_by=chosen_by))


def split_files(
    data: Path, *, suffixes: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Path]:
    """The `train` and `dev` files of a folder, by name: train.csv, dev.csv, ..."""
    wanted = names or {"train": ("train",), "dev": ("dev", "valid", "validation", "test")}
    if not data.is_dir():
        raise ConfigError(
            "--data", f"{data} is not there", fix="give a file, or a folder with train and dev files in it"
        )
    found: dict[str, Path] = {}
    for split, stems in wanted.items():
        places = [data / f"{stem}{suffix}" for stem in stems for suffix in suffixes]
        there = [path for path in places if path.is_file()]
        if not there:
            listed = ", ".join(path.name for path in places[:4])
            raise DataError(data, f"has no {split} file", fix=f"name it {listed}")
        found[split] = there[0]
    return found


def _say_columns(path: Path, found: Columns, *, asked: Columns) -> None:
    """Say which columns were guessed."""
    if (found.text, found.pair, found.label) != (asked.text or TEXT, asked.pair, asked.label or LABEL):
        texts, options = f"text from column '{found.text}'", "--text and --label name others"
        if found.pair is not None:
            texts = f"texts from columns '{found.text}' and '{found.pair}'"
            options = "--text, --pair and --label name others; --text alone reads one text"
        say(f"{path}: reading the {texts}, the label from '{found.label}' ({options})")


def _say_unread(path: Path, found: Columns) -> None:
    """Name the texts that are left out, where a second one could be read."""
    if found.pair is None and (others := unread_texts(path, found)):
        listed = ", ".join(f"'{name}'" for name in others)
        say(f"{path}: not read: {listed} (--pair {shlex.quote(others[0])} reads a second text)")
