"""A task with its tokenized data: what the trainer trains on and evaluates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from electra.config.finetune import FinetuneConfig
from electra.errors import DataError
from electra.metrics.squad import squad_scores
from electra.progress import say
from electra.tasks.conll import bioes_tags, is_chunked, read_conll, tags_of, to_bioes
from electra.tasks.features import encode_sequences, encode_words, join_words, swapped
from electra.tasks.glue_files import has_split, read_glue
from electra.tasks.glue_tasks import TASKS
from electra.tasks.rows import Example, Features, HeadOutputs, Kind, Question
from electra.tasks.scoring import Evaluation, evaluate_scores, evaluate_tags, predictions_from
from electra.tasks.spans import Answer, decode, span_scores
from electra.tasks.squad_files import gold_texts, read_squad
from electra.tasks.tables import labels_of, read_table
from electra.tasks.task import Task
from electra.tasks.windows import Windows, cut_windows
from electra.tokenizer.codec import Tokenizer

Predictions = dict[str, Any]
"""By the id of a row, sentence or question: a class, classes, a number, tags, or an answer."""

SQUAD_TITLES = {"squad": "SQuAD 1.1", "squad2": "SQuAD 2.0"}
SQUAD_ROWS = {"1.1": {"train": 87_599, "dev": 10_570}, "2.0": {"train": 130_319, "dev": 11_873}}
_METRICS: dict[Kind, tuple[str, ...]] = {
    "classify": ("accuracy", "macro_f1"),
    "multilabel": ("micro_f1", "macro_f1", "subset_accuracy"),
    "regress": ("spearman", "pearson", "mse"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSplit:
    """A split to predict: its features, and what to do with the head's outputs for them."""

    features: Features
    decode: Callable[[HeadOutputs], Predictions]
    """The predictions in the outputs, by row id."""
    evaluate: Callable[[HeadOutputs], Evaluation] | None = None
    """The metrics of the outputs; None where the labels are unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskData:
    """A task with its tokenized data, ready to train on and to evaluate."""

    task: Task
    train: Features
    eval_splits: Mapping[str, EvalSplit]
    """Splits other than `train`, by name; the first with labels gives the score that is reported."""
    rows: dict[str, int]
    """Rows of each labelled split, before pairs are swapped and passages windowed."""
    full: dict[str, int] = field(default_factory=dict)
    """The same as published, where known."""
    tests: Mapping[str, tuple[Task, str]] = field(default_factory=dict)
    """Task and test split of each evaluation split that a leaderboard asks for."""


def load_glue(task: Task, folder: Path, *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A GLUE task from the standard folders, with its test sets where they are there."""
    encode = _sequence_encoder(task, tokenizer=tokenizer, length=config.length)
    examples = {split: read_glue(task, folder, split) for split in task.splits if has_split(task, folder, split)}
    train = examples.get("train")
    if train is None or "dev" not in examples:
        missing = "train" if train is None else "dev"
        raise DataError(folder, f"{task.title} has no {missing} file", fix="give the folder that holds the GLUE tasks")
    splits = {split: _sequence_split(task, rows, encode=encode) for split, rows in examples.items() if split != "train"}
    tests: dict[str, tuple[Task, str]] = {}
    for other in (one for one in TASKS.values() if task.name in (one.name, one.model_of)):
        for split in other.tests:
            if has_split(other, folder, split):
                name = split if other is task else f"{other.name}-{split}"
                splits[name] = _sequence_split(other, _read_test(other, folder, split), encode=encode)
                tests[name] = (other, split)
    return TaskData(
        task=_with_mismatched(task, examples),
        train=_both_ways(train, encode=encode) if task.unordered else encode(train),
        eval_splits=splits,
        rows={split: len(rows) for split, rows in examples.items()},
        full={split: task.official_rows[split] for split in examples},
        tests=tests,
    )


def load_table(
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
) -> TaskData:
    """A task from CSV, TSV or JSONL files `train` and `dev` with these columns."""

    def read(split: str, labels: tuple[str, ...] | None = None) -> list[Example]:
        return read_table(
            files[split], text=text, pair=pair, label=label, kind=kind, separator=separator, labels=labels
        )

    train = read("train")
    labels = () if kind == "regress" else labels_of(train)
    if kind != "regress" and len(labels) < 2:
        raise DataError(files["train"], f"column '{label}' has one label only: '{''.join(labels)}'")
    scale = 1.0
    if kind == "regress":
        scale = max(1e-6, float(np.abs([float(one.label) for one in train]).max()))  # type: ignore[arg-type]
    task = Task(name=name, title=name, kind=kind, labels=labels, metrics=_METRICS[kind], scale=scale)
    encode = _sequence_encoder(task, tokenizer=tokenizer, length=config.length)
    dev = read("dev", labels or None)
    return TaskData(
        task=task,
        train=encode(train),
        eval_splits={"dev": _sequence_split(task, dev, encode=encode)},
        rows={"train": len(train), "dev": len(dev)},
    )


def load_tagging(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A task from CoNLL files `train` and `dev`: the word first, its tag last. Chunk tags become BIOES."""
    sentences = {split: read_conll(path) for split, path in files.items()}
    chunked = is_chunked(tag for one in sentences["train"] for tag in one.tags or ())
    if chunked:
        sentences = {
            split: [replace(one, tags=to_bioes(one.tags or ())) for one in rows] for split, rows in sentences.items()
        }
    labels = bioes_tags(sentences["train"]) if chunked else tags_of(sentences["train"])
    metrics = ("f1", "precision", "recall", "accuracy") if chunked else ("accuracy",)
    encoded = {
        split: encode_words(rows, tokenizer=tokenizer, labels=labels, length=config.length, where=files[split])
        for split, rows in sentences.items()
    }
    dev, (dev_features, dev_windows) = sentences["dev"], encoded["dev"]

    def tags(outputs: HeadOutputs) -> list[list[str]]:
        best = [scores.argmax(1).tolist() for scores in outputs["scores"]]
        return [[labels[number] for number in one] for one in join_words(dev_windows, best, count=len(dev))]

    split = EvalSplit(
        features=dev_features,
        decode=lambda outputs: {one.id: found for one, found in zip(dev, tags(outputs), strict=True)},
        evaluate=lambda outputs: evaluate_tags(tags(outputs), dev, chunked=chunked),
    )
    return TaskData(
        task=Task(name=name, title=name, kind="tag", labels=labels, metrics=metrics),
        train=encoded["train"][0],
        eval_splits={"dev": split},
        rows={split: len(rows) for split, rows in sentences.items()},
    )


def load_questions(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A task from SQuAD files `train` and `dev`. Where some questions have no answer, SQuAD 2.0's rules hold."""
    questions = {split: read_squad(path) for split, path in files.items()}
    null = any(one.impossible for one in questions["train"])
    cut = partial(
        cut_windows,
        tokenizer=tokenizer,
        length=config.length,
        max_question=config.max_query,
        stride=config.doc_stride,
    )
    train = cut(questions["train"], targets=True, where=files["train"])
    if not len(train):
        raise DataError(files["train"], f"no answer can be placed in its context, the first is {train.skipped[0]!r}")
    if train.skipped:
        count = f"{len(train.skipped):,} of {len(questions['train']):,} questions"
        say(f"{files['train']}: {count} left out, their answers cover no token, the first is {train.skipped[0]!r}")
    unknown = next((one.id for one in questions["dev"] if not one.answers and not one.impossible), None)
    if unknown is not None:
        reason = f"question {unknown!r} has no answer to score against"
        raise DataError(files["dev"], reason, fix="electra predict takes it")
    dev = cut(questions["dev"], where=files["dev"])
    metrics = ("exact", "f1", "best_exact", "best_f1") if null else ("exact", "f1")
    return TaskData(
        task=Task(name=name, title=SQUAD_TITLES.get(name, name), kind="span", metrics=metrics),
        train=train.features,
        eval_splits={"dev": _question_split(questions["dev"], dev, null=null, config=config)},
        rows={split: len(rows) for split, rows in questions.items()},
        full=SQUAD_ROWS["2.0" if null else "1.1"] if name.lower().startswith("squad") else {},
    )


def _question_split(questions: list[Question], windows: Windows, *, null: bool, config: FinetuneConfig) -> EvalSplit:
    def answers(outputs: HeadOutputs) -> list[Answer]:
        return decode(
            span_scores(outputs),
            windows=windows,
            questions=questions,
            n_best=config.n_best,
            max_answer=config.max_answer,
        )

    def evaluate(outputs: HeadOutputs) -> Evaluation:
        found = answers(outputs)
        odds = {one.id: one.null_odds for one in found} if null else None
        texts = {one.id: one.text for one in found}
        scores = squad_scores(texts, gold_texts(questions), null_odds=odds, threshold=config.null_threshold)
        predicted = {
            "" if odds is not None and odds[id] > config.null_threshold else text for id, text in texts.items()
        }
        return Evaluation(scores=scores, stuck=len(predicted) == 1 and len({one.answers for one in questions}) > 1)

    return EvalSplit(
        features=windows.features,
        decode=lambda outputs: {one.id: one for one in answers(outputs)},
        evaluate=evaluate,
    )


def _both_ways(examples: Sequence[Example], *, encode: Callable[[Sequence[Example]], Features]) -> Features:
    """Pairs and the same pairs swapped: two sequences a row."""
    return replace(encode(swapped(examples)), rows=np.tile(np.arange(len(examples)), 2))


def _read_test(task: Task, folder: Path, split: str) -> list[Example]:
    rows = read_glue(task, folder, split)
    if len({row.id for row in rows}) < len(rows):
        reason = f"two rows of {task.title}'s {split} file have the same index"
        raise DataError(folder, reason, fix="fetch it again")
    return rows


def _with_mismatched(task: Task, examples: Mapping[str, object]) -> Task:
    extra = tuple(f"accuracy_{split.removeprefix('dev_')}" for split in examples if split.startswith("dev_"))
    return replace(task, metrics=(*task.metrics, *extra))


def _sequence_encoder(task: Task, *, tokenizer: Tokenizer, length: int) -> Callable[[Sequence[Example]], Features]:
    return partial(
        encode_sequences,
        tokenizer=tokenizer,
        task_kind=task.kind,
        labels=task.labels,
        scale=task.scale,
        length=length,
        where=task.title,
    )


def _sequence_split(
    task: Task, examples: Sequence[Example], *, encode: Callable[[Sequence[Example]], Features]
) -> EvalSplit:
    features = encode(examples)

    def predictions(outputs: HeadOutputs) -> Predictions:
        values = predictions_from(np.asarray(outputs["scores"]), task)
        return dict(zip((one.id for one in examples), values, strict=True))

    def evaluate(outputs: HeadOutputs) -> Evaluation:
        assert features.targets is not None
        return evaluate_scores(np.asarray(outputs["scores"]), np.asarray(features.targets), task)

    return EvalSplit(features=features, decode=predictions, evaluate=evaluate if features.targets is not None else None)
