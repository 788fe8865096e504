"""The rows of GLUE's files, as these are published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.errors import ConfigError, DataError
from electra.progress import counted, say
from electra.tasks.files import find_file, read_lines
from electra.tasks.glue_tasks import TASKS
from electra.tasks.rows import Example, Label
from electra.tasks.task import Task

Column = str | int
_Row = tuple[int, list[str]]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a row: by the header's name, or by number where there is no usable header."""

    text: Column
    pair: Column | None
    label: Column | None
    header: bool = True


_COLUMNS = {
    "cola": _Columns(3, None, 1, header=False),
    "sst2": _Columns("sentence", None, "label"),
    "mrpc": _Columns("#1 String", "#2 String", "Quality"),
    "stsb": _Columns(-3, -2, -1),  # from the end, as the released code does
    "qqp": _Columns("question1", "question2", "is_duplicate"),
    "mnli": _Columns("sentence1", "sentence2", "gold_label"),
    "qnli": _Columns("question", "sentence", "label"),
    "rte": _Columns("sentence1", "sentence2", "label"),
    "wnli": _Columns("sentence1", "sentence2", "label"),
    "ax": _Columns("sentence1", "sentence2", None),
}
_TEST_COLUMNS = {"cola": _Columns("sentence", None, None), "stsb": _Columns(-2, -1, None)}

_FOLDERS = {
    "sst2": ("sst-2", "sst2", "sst"),
    "stsb": ("sts-b", "stsb", "sts"),
    "ax": ("ax", "diagnostic", "mnli"),
}
_FILES = {
    ("mnli", "dev"): ("dev_matched.tsv",),
    ("mnli", "test"): ("test_matched.tsv",),
    ("ax", "test"): ("diagnostic.tsv", "AX.tsv", "ax.tsv"),
}
_MSR_TRAIN, _MSR_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
_MSR_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


def find_tasks(folder: Path) -> list[Task]:
    """The tasks that have at least one file in this GLUE folder, in the order of the table."""
    if not folder.is_dir():
        raise DataError(folder, "no such folder", fix="name the folder that holds CoLA, SST-2 and so on")
    found = [task for task in TASKS.values() if any(has_split(task, folder, s) for s in (*task.splits, *task.tests))]
    if not found:
        looked = " ".join(task.title for task in TASKS.values())
        raise DataError(folder, f"no GLUE task here; looked for {looked}", fix="name the folder that holds these")
    return found


def has_split(task: Task, folder: Path, split: str) -> bool:
    """Whether a file with this split of the task is in the GLUE folder."""
    return _find(task, folder, split) is not None


def require_trainable(task: Task, folder: Path) -> None:
    """Refuse a GLUE folder without the rows to train this task on, or without those to score it by."""
    for split in ("train", "dev"):
        if not has_split(task, folder, split):
            fix = f"give the folder that holds the GLUE tasks, with {_expected(task, folder, split)}"
            raise DataError(folder, f"{task.title} has no {split} file", fix=fix)


def read_glue(task: Task, folder: Path, split: str) -> list[Example]:
    """The rows of a split, in file order; `folder` holds the tasks' folders, or is the task's own."""
    if split not in (*task.splits, *task.tests):
        known = " ".join((*task.splits, *task.tests))
        raise ConfigError("split", f"{task.title} has no split '{split}'; it has {known}")
    path = _find(task, folder, split)
    if path is None:
        fix = f"put the {task.title} files of GLUE there"
        raise DataError(_expected(task, folder, split), "no such file", fix=fix)
    columns = _COLUMNS[task.name]
    if split in task.tests:
        columns = _TEST_COLUMNS.get(task.name, columns)
    header, rows = _rows(path, header=columns.header)
    if path.name.startswith(_MSR_TRAIN):
        rows = _msr_split(rows, path=path, header=header, dev=split == "dev")
    examples = _examples(rows, path=path, header=header, columns=columns, task=task, test=split in task.tests)
    if not examples:
        raise DataError(path, "holds no rows", fix="fetch it again")
    return examples


def _expected(task: Task, folder: Path, split: str) -> Path:
    """Where a split of the task belongs."""
    return (_folders(task, folder) or [folder / task.title])[0] / _names(task, split)[0]


def _rows(path: Path, *, header: bool) -> tuple[list[str], list[_Row]]:
    """The header's names, and the other lines' numbers and fields. A quote is a character like any other."""
    lines = [line.split("\t") for line in read_lines(path)]
    first = 1 if header and lines else 0
    return (lines[0] if first else []), list(enumerate(lines[first:], first + 1))


def _examples(
    rows: list[_Row], *, path: Path, header: list[str], columns: _Columns, task: Task, test: bool
) -> list[Example]:
    text = _at(columns.text, header, path=path)
    pair = None if columns.pair is None else _at(columns.pair, header, path=path)
    label = None if test or columns.label is None else _at(columns.label, header, path=path)
    index = next((at for at, name in enumerate(header) if test and name in ("index", "id")), None)
    needed = max(at + 1 if at >= 0 else -at for at in (text, pair, label, index) if at is not None)
    if text < 0:
        needed = max(needed, len(header))  # counted from the end, a short row would give the wrong columns
    examples: list[Example] = []
    short: list[int] = []
    for line, fields in rows:
        if len(fields) < needed:
            if task.name != "qqp" or test:  # the published QQP files have broken rows
                wants = f"line {line} has {len(fields)} of the {needed} fields that {task.title} needs"
                raise DataError(path, wants, fix="fields are separated by tabs; fetch the file again")
            short.append(line)
            continue
        examples.append(
            Example(
                id=str(len(examples)) if index is None else fields[index],
                text=fields[text],
                pair=None if pair is None else fields[pair],
                label=None if label is None else _label(fields[label], task=task, path=path, line=line),
            )
        )
    if short:
        count = counted(len(short), "row")
        say(f"{path}: {count} with missing fields left out, the first in line {short[0]}")
    return examples


def _at(column: Column, header: Sequence[str], *, path: Path) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        fix = "the first line must name the columns, with tabs between them"
        raise DataError(path, f"no column '{column}'; found {', '.join(header) or 'none'}", fix=fix)
    return header.index(column)


def _label(field: str, *, task: Task, path: Path, line: int) -> Label:
    if task.kind == "regress":
        try:
            value = float(field)
        except ValueError:
            value = math.nan
        if not 0 <= value <= task.scale:
            raise DataError(path, f"line {line}: '{field}' is not a score from 0 to {task.scale:g}")
        return value
    if field not in task.labels:
        raise DataError(path, f"line {line}: unknown label '{field}'; {task.title} has {', '.join(task.labels)}")
    return field


def _folders(task: Task, folder: Path) -> list[Path]:
    """Folders that may hold the task, the likeliest first."""
    wanted = _FOLDERS.get(task.name, (task.name,))
    if not folder.is_dir():
        return []
    inside = {entry.name.lower(): entry for entry in sorted(folder.iterdir(), reverse=True) if entry.is_dir()}
    found = [inside[name] for name in wanted if name in inside]
    itself = [folder] if task.name == "ax" or folder.resolve().name.lower() in wanted else []
    return found + itself


def _names(task: Task, split: str) -> tuple[str, ...]:
    if (task.name, split) in _FILES:
        return _FILES[task.name, split]
    if task.name == "mrpc":
        return (f"{split}.tsv", _MSR_TEST if split == "test" else _MSR_TRAIN)
    return (f"{split}.tsv",)


def _find(task: Task, folder: Path, split: str) -> Path | None:
    folders = _folders(task, folder)
    if task.name == "ax" and (path := find_file(folders[:1], ("test.tsv",))) and folders[0].name.lower() == "ax":
        return path
    return find_file(folders, _names(task, split))


def _msr_split(rows: list[_Row], *, path: Path, header: list[str], dev: bool) -> list[_Row]:
    """The rows of the original MRPC train file that GLUE put into dev, or the others."""
    ids = find_file([path.parent], _MSR_DEV_IDS)
    if ids is None:
        raise DataError(path.parent / _MSR_DEV_IDS[0], f"no such file; it says which rows of {path.name} are dev")
    chosen = {tuple(line.split()) for line in read_lines(ids)}
    first, second = _at("#1 ID", header, path=path), _at("#2 ID", header, path=path)
    return [row for row in rows if (tuple(row[1][first : second + 1]) in chosen) == dev]
