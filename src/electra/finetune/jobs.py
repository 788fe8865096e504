"""A task with its data, ready to train on and to judge: what the trainer and the suites are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError, DataError
from electra.finetune.answers import Said, span_scores
from electra.finetune.conll import bioes_tags, is_chunked, read_conll, tags_of, to_bioes
from electra.finetune.features import encode_sequences, encode_words, join_words, swapped
from electra.finetune.glue import has_split, read_glue
from electra.finetune.glue_tasks import TASKS
from electra.finetune.judging import Verdict, judge_scores, judge_tags, read_scores
from electra.finetune.rows import Example, Features, Kind
from electra.finetune.spans import Answer, decode
from electra.finetune.squad import gold_texts, read_squad
from electra.finetune.tables import labels_of, read_table
from electra.finetune.task import Task
from electra.finetune.windows import cut_windows
from electra.metrics.squad import squad_scores
from electra.progress import say
from electra.tokenizer.codec import Tokenizer

Predictions = dict[str, Any]
"""By the id of a row, sentence or question: a class, classes, a number, tags, or an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One split: its features, how to read answers to them, and, where labels are known, how to judge these."""

    features: Features
    read: Callable[[Said], Predictions]
    judge: Callable[[Said], Verdict] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A task's training features and its other splits; the first of them with labels decides."""

    task: Task
    train: Features
    parts: Mapping[str, Part]
    rows: dict[str, int]
    """Rows of each labelled split, before pairs are swapped and passages windowed."""
    full: dict[str, int] = field(default_factory=dict)
    """The same as published, where known."""
    tests: Mapping[str, tuple[Task, str]] = field(default_factory=dict)
    """Parts without labels that a leaderboard asks for: its task and split."""


def glue_job(task: Task, folder: Path, *, tokenizer: Tokenizer, config: FinetuneConfig) -> Job:
    """A GLUE task from the standard folders, with its test sets where they are there."""
    encode = _sequence_encoder(task, tokenizer=tokenizer, config=config)
    examples = {split: read_glue(task, folder, split) for split in task.splits if has_split(task, folder, split)}
    train_on = examples.get("train")
    if train_on is None or "dev" not in examples:
        missing = "train" if train_on is None else "dev"
        raise DataError(folder, f"{task.title} has no {missing} file", fix="give the folder that holds the GLUE tasks")
    parts = {split: _sequence_part(task, rows, encode=encode) for split, rows in examples.items() if split != "train"}
    tests: dict[str, tuple[Task, str]] = {}
    for other in (one for one in TASKS.values() if task.name in (one.name, one.model_of)):
        for split in other.tests:
            if has_split(other, folder, split):
                name = split if other is task else f"{other.name}-{split}"
                rows = read_glue(other, folder, split)
                if len({row.id for row in rows}) < len(rows):
                    reason = f"two rows of {other.title}'s {split} file have the same index"
                    raise DataError(folder, reason, fix="fetch it again")
                parts[name] = _sequence_part(other, rows, encode=encode)
                tests[name] = (other, split)
    return Job(
        task=_with_mismatched(task, examples),
        train=encode(swapped(train_on) if task.unordered else train_on),
        parts=parts,
        rows={split: len(rows) for split, rows in examples.items()},
        full={split: task.official_rows[split] for split in examples},
        tests=tests,
    )


def table_job(
    name: str,
    files: Mapping[str, Path],
    *,
    kind: Kind,
    text: str,
    pair: str | None,
    label: str,
    separator: str = ",",
    tokenizer: Tokenizer,
    config: FinetuneConfig,
) -> Job:
    """A task from CSV or JSONL files `train` and `dev` with these columns."""

    def read(split: str, labels: tuple[str, ...] | None = None) -> list[Example]:
        return read_table(
            files[split], text=text, pair=pair, label=label, kind=kind, separator=separator, labels=labels
        )

    train_on = read("train")
    labels = () if kind == "regress" else labels_of(train_on)
    if kind != "regress" and len(labels) < 2:
        raise DataError(files["train"], f"column '{label}' has one label only: '{''.join(labels)}'")
    scale = 1.0
    if kind == "regress":
        scale = max(1e-6, float(np.abs([float(one.label) for one in train_on]).max()))  # type: ignore[arg-type]
    task = Task(name=name, title=name, kind=kind, labels=labels, metrics=_METRICS[kind], scale=scale)
    encode = _sequence_encoder(task, tokenizer=tokenizer, config=config)
    dev = read("dev", labels or None)
    return Job(
        task=task,
        train=encode(train_on),
        parts={"dev": _sequence_part(task, dev, encode=encode)},
        rows={"train": len(train_on), "dev": len(dev)},
    )


def tagging_job(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> Job:
    """A task from CoNLL columns `train` and `dev`: the word first, its tag last; spans are trained on as BIOES."""
    read = {split: read_conll(path) for split, path in files.items()}
    chunked = is_chunked(tag for one in read["train"] for tag in one.tags or ())
    if chunked:
        read = {split: [replace(one, tags=to_bioes(one.tags or ())) for one in rows] for split, rows in read.items()}
    labels = bioes_tags(read["train"]) if chunked else tags_of(read["train"])
    metrics = ("f1", "precision", "recall", "accuracy") if chunked else ("accuracy",)
    task = Task(name=name, title=name, kind="tag", labels=labels, metrics=metrics)
    features = {}
    windows = {}
    for split, rows in read.items():
        features[split], windows[split] = encode_words(
            rows, tokenizer=tokenizer, labels=labels, length=config.length, where=files[split]
        )
    dev = read["dev"]

    def tags(said: Said) -> list[list[str]]:
        best = [scores.argmax(1).tolist() for scores in said["scores"]]
        return [[labels[number] for number in one] for one in join_words(windows["dev"], best, count=len(dev))]

    part = Part(
        features=features["dev"],
        read=lambda said: {one.id: found for one, found in zip(dev, tags(said), strict=True)},
        judge=lambda said: judge_tags(tags(said), dev, chunked=chunked),
    )
    return Job(
        task=task,
        train=features["train"],
        parts={"dev": part},
        rows={split: len(rows) for split, rows in read.items()},
    )


def question_job(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> Job:
    """A task from SQuAD files `train` and `dev`; where some questions have no answer, the rules are those of 2.0."""
    read = {split: read_squad(path) for split, path in files.items()}
    null = any(one.impossible for one in read["train"])
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "length": config.length,
        "max_question": config.max_query,
        "stride": config.doc_stride,
    }
    train = cut_windows(read["train"], targets=True, where=files["train"], **options)
    if not len(train):
        raise DataError(files["train"], f"no answer can be placed in its context, the first is {train.skipped[0]!r}")
    if train.skipped:
        count = f"{len(train.skipped):,} of {len(read['train']):,} questions"
        say(f"{files['train']}: {count} left out, their answers cover no token, the first is {train.skipped[0]!r}")
    unknown = next((one.id for one in read["dev"] if not one.answers and not one.impossible), None)
    if unknown is not None:
        raise DataError(files["dev"], f"question {unknown!r} has no answer to judge by", fix="electra predict takes it")
    dev = cut_windows(read["dev"], where=files["dev"], **options)
    metrics = ("exact", "f1", "best_exact", "best_f1") if null else ("exact", "f1")

    def found(said: Said) -> list[Answer]:
        return decode(
            span_scores(said), windows=dev, questions=read["dev"], n_best=config.n_best, max_answer=config.max_answer
        )

    def judge(said: Said) -> Verdict:
        answers = found(said)
        odds = {one.id: one.null_odds for one in answers} if null else None
        texts = {one.id: one.text for one in answers}
        scores = squad_scores(texts, gold_texts(read["dev"]), null_odds=odds, threshold=config.null_threshold)
        said_nothing = [odds is not None and odds[id] > config.null_threshold for id in texts]
        given = {"" if nothing else text for nothing, text in zip(said_nothing, texts.values(), strict=True)}
        stuck = len(given) == 1 and len({one.answers for one in read["dev"]}) > 1
        return Verdict(scores=scores, stuck=stuck)

    part = Part(features=dev.features, read=lambda said: {one.id: one for one in found(said)}, judge=judge)
    return Job(
        task=Task(name=name, title=SQUAD_TITLES.get(name, name), kind="span", metrics=metrics),
        train=train.features,
        parts={"dev": part},
        rows={split: len(rows) for split, rows in read.items()},
        full=SQUAD_ROWS["2.0" if null else "1.1"] if name.lower().startswith("squad") else {},
    )


SQUAD_TITLES = {"squad": "SQuAD 1.1", "squad2": "SQuAD 2.0"}
SQUAD_ROWS = {"1.1": {"train": 87_599, "dev": 10_570}, "2.0": {"train": 130_319, "dev": 11_873}}
_METRICS: dict[Kind, tuple[str, ...]] = {
    "classify": ("accuracy", "macro_f1"),
    "multilabel": ("micro_f1", "macro_f1", "subset_accuracy"),
    "regress": ("spearman", "pearson", "mse"),
}


def _with_mismatched(task: Task, examples: Mapping[str, object]) -> Task:
    extra = tuple(f"accuracy_{split.removeprefix('dev_')}" for split in examples if split.startswith("dev_"))
    return replace(task, metrics=(*task.metrics, *extra))


def _sequence_encoder(
    task: Task, *, tokenizer: Tokenizer, config: FinetuneConfig
) -> Callable[[Sequence[Example]], Features]:
    def encode(examples: Sequence[Example]) -> Features:
        return encode_sequences(
            examples,
            tokenizer=tokenizer,
            task_kind=task.kind,
            labels=task.labels,
            scale=task.scale,
            length=config.length,
            where=task.title,
        )

    return encode


def _sequence_part(task: Task, examples: Sequence[Example], *, encode: Callable[[Sequence[Example]], Features]) -> Part:
    features = encode(examples)

    def read(said: Said) -> Predictions:
        return dict(zip((one.id for one in examples), read_scores(np.asarray(said["scores"]), task), strict=True))

    def judge(said: Said) -> Verdict:
        assert features.targets is not None
        return judge_scores(np.asarray(said["scores"]), np.asarray(features.targets), task)

    return Part(features=features, read=read, judge=judge if features.targets is not None else None)


def split_files(
    data: Path, *, suffixes: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Path]:
    """The `train` and `dev` files of a folder, by name: train.csv, dev.csv, ..."""
    wanted = names or {"train": ("train",), "dev": ("dev", "valid", "validation", "test")}
    if not data.is_dir():
        raise ConfigError("--data", f"{data} is not a folder", fix="give one with train and dev files in it")
    found: dict[str, Path] = {}
    for split, stems in wanted.items():
        places = [data / f"{stem}{suffix}" for stem in stems for suffix in suffixes]
        there = [path for path in places if path.is_file()]
        if not there:
            listed = ", ".join(path.name for path in places[:4])
            raise DataError(data, f"has no {split} file", fix=f"name it {listed}")
        found[split] = there[0]
    return found
