"""A task with its tokenized data: what the trainer trains on and evaluates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from electra.config.finetune import FinetuneConfig
from electra.errors import DataError
from electra.metrics.squad import squad_scores
from electra.progress import say
from electra.tasks.columns import Columns
from electra.tasks.conll import chunk_tags, is_chunked, read_conll, scheme_of, tags_of, to_scheme
from electra.tasks.details import Details, sequence_details, tag_details
from electra.tasks.features import encode_sequences, encode_words, join_words, swapped
from electra.tasks.glue_files import has_split, read_glue, require_trainable
from electra.tasks.glue_tasks import TASKS
from electra.tasks.hold_out import hold_out, hold_out_examples
from electra.tasks.rows import Example, Features, HeadOutputs, Kind, Question, Sentence
from electra.tasks.scoring import Evaluation, evaluate_scores, evaluate_tags, predictions_from
from electra.tasks.spans import Answer, decode, span_scores
from electra.tasks.squad_files import gold_texts, read_squad
from electra.tasks.tables import centre_and_spread, labels_of, numbers_of, read_table, warn_of_labels
from electra.tasks.task import Task
from electra.tasks.windows import Windows, cut_windows
from electra.tokenizer.codec import Tokenizer

Predictions = dict[str, Any]
"""By the id of a row, sentence or question: a class, classes, a number, tags, or an answer."""

Row = TypeVar("Row", Sentence, Question)

SQUAD_TITLES = {"squad": "SQuAD 1.1", "squad2": "SQuAD 2.0"}
SQUAD_ROWS = {"1.1": {"train": 87_599, "dev": 10_570}, "2.0": {"train": 130_319, "dev": 11_873}}
METRICS: dict[Kind, tuple[str, ...]] = {
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
    details: Callable[[HeadOutputs], Details] | None = None
    """Scores of each class and the worst errors; None where the labels are unknown, and for questions."""


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
    columns: Columns | None = None
    """Of a table: which columns were read."""
    held_out: bool = False
    """Whether `dev` is a part of the one file that there was."""


def load_glue(task: Task, folder: Path, *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A GLUE task from the standard folders, with its test sets where they are there."""
    encode = sequence_encoder(task, tokenizer=tokenizer, length=config.length)
    require_trainable(task, folder)
    examples = {split: read_glue(task, folder, split) for split in task.splits if has_split(task, folder, split)}
    train = examples["train"]
    splits = {split: sequence_split(task, rows, encode=encode) for split, rows in examples.items() if split != "train"}
    tests: dict[str, tuple[Task, str]] = {}
    for other in (one for one in TASKS.values() if task.name in (one.name, one.model_of)):
        for split in other.tests:
            if has_split(other, folder, split):
                name = split if other is task else f"{other.name}-{split}"
                splits[name] = sequence_split(other, _read_test(other, folder, split), encode=encode)
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
    """A task from CSV, TSV, JSONL or Parquet files `train` and `dev`; without `dev`, rows of `train` are held out."""

    def read(split: str, labels: tuple[str, ...] | None = None) -> list[Example]:
        return read_table(
            files[split], text=text, pair=pair, label=label, kind=kind, separator=separator, labels=labels
        )

    whole = read("train")
    labels = () if kind == "regress" else labels_of(whole)
    if kind != "regress" and len(labels) < 2:
        reason = f"column '{label}' has one label only: '{''.join(labels)}'"
        raise DataError(files["train"], reason, fix="a task needs two; name another column with --label")
    offset, scale = 0.0, 1.0
    if kind == "regress":
        numbers = numbers_of(whole, column=label, path=files["train"], fix="name another column with --label")
        # The head begins at 0. Of labels far from it, such as years, training would find the mean and nothing else; and
        # the largest label would make the others alike where few are large, as of prices.
        offset, scale = centre_and_spread(numbers)
    task = Task(name=name, title=name, kind=kind, labels=labels, metrics=METRICS[kind], offset=offset, scale=scale)
    encode = sequence_encoder(task, tokenizer=tokenizer, length=config.length)
    if "dev" in files:
        train, dev = whole, read("dev", labels or None)
    else:
        if kind == "classify" and len(labels) == len(whole) > 2:
            reason = f"every label in column '{label}' occurs once, so no row can be held out"
            fix = "another column with --label, or electra finetune regress for numbers"
            raise DataError(files["train"], reason, fix=fix)
        train, dev = hold_out_examples(
            whole, kind=kind, share=config.hold_out, seed=config.hold_out_seed, where=files["train"]
        )
        say_held_out(files["train"], train, dev)
    warn_of_labels(labels, kind=kind, path=files["train"])
    return TaskData(
        task=task,
        train=encode(train),
        eval_splits={"dev": sequence_split(task, dev, encode=encode)},
        rows={"train": len(train), "dev": len(dev)},
        columns=Columns(text=text, pair=pair, label=label, separator=separator),
        held_out="dev" not in files,
    )


def load_tagging(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A task from CoNLL files `train` and `dev`: the word first, its tag last. Chunks are tagged as in `train`."""
    sentences = {split: read_conll(path) for split, path in files.items()}
    if "dev" not in files:
        sentences["train"], sentences["dev"] = _hold_out_rows(
            sentences["train"], files["train"], group=lambda one: one.words, config=config
        )
    chunked = is_chunked(tag for one in sentences["train"] for tag in one.tags or ())
    if chunked:
        scheme = scheme_of(sentences["train"])
        sentences = {
            split: [replace(one, tags=to_scheme(one.tags or (), scheme)) for one in rows]
            for split, rows in sentences.items()
        }
        labels = chunk_tags(sentences["train"], scheme)
    else:
        labels = tags_of(sentences["train"])
    metrics = ("f1", "precision", "recall", "accuracy") if chunked else ("accuracy",)
    train, _ = encode_words(
        sentences["train"], tokenizer=tokenizer, labels=labels, length=config.length, where=files["train"]
    )
    task = Task(name=name, title=name, kind="tag", labels=labels, metrics=metrics)
    where = files.get("dev", files["train"])
    return TaskData(
        task=task,
        train=train,
        eval_splits={"dev": tag_split(task, sentences["dev"], tokenizer=tokenizer, length=config.length, where=where)},
        rows={split: len(rows) for split, rows in sentences.items()},
        held_out="dev" not in files,
    )


def tag_split(
    task: Task, sentences: Sequence[Sentence], *, tokenizer: Tokenizer, length: int, where: object
) -> EvalSplit:
    """Sentences to tag and to evaluate."""
    labels, chunked = task.labels, "f1" in task.metrics
    features, windows = encode_words(sentences, tokenizer=tokenizer, labels=labels, length=length, where=where)

    def tags(outputs: HeadOutputs) -> list[list[str]]:
        best = [scores.argmax(1).tolist() for scores in outputs["scores"]]
        return [[labels[number] for number in one] for one in join_words(windows, best, count=len(sentences))]

    return EvalSplit(
        features=features,
        decode=lambda outputs: {one.id: found for one, found in zip(sentences, tags(outputs), strict=True)},
        evaluate=lambda outputs: evaluate_tags(tags(outputs), sentences, chunked=chunked),
        details=lambda outputs: tag_details(tags(outputs), sentences, chunked=chunked),
    )


def load_questions(name: str, files: Mapping[str, Path], *, tokenizer: Tokenizer, config: FinetuneConfig) -> TaskData:
    """A task from SQuAD files `train` and `dev`. Where some questions have no answer, SQuAD 2.0's rules hold."""
    questions = {split: read_squad(path) for split, path in files.items()}
    where = files.get("dev", files["train"])
    if "dev" not in files:
        questions["train"], questions["dev"] = _hold_out_rows(
            questions["train"], where, group=lambda one: one.context, config=config
        )
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
        raise DataError(where, reason, fix="electra predict takes it")
    dev = cut(questions["dev"], where=where)
    metrics = ("exact", "f1", "best_exact", "best_f1") if null else ("exact", "f1")
    return TaskData(
        task=Task(name=name, title=SQUAD_TITLES.get(name, name), kind="span", metrics=metrics),
        train=train.features,
        eval_splits={"dev": _question_split(questions["dev"], dev, null=null, config=config)},
        rows={split: len(rows) for split, rows in questions.items()},
        held_out="dev" not in files,
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


def _hold_out_rows(
    rows: Sequence[Row], where: Path, *, group: Callable[[Row], Hashable], config: FinetuneConfig
) -> tuple[list[Row], list[Row]]:
    """Rows to train on and rows held out; those of one group stay together."""
    train, dev = hold_out(
        rows, group=group, stratum=lambda one: 0, share=config.hold_out, seed=config.hold_out_seed, where=where
    )
    say_held_out(where, train, dev)
    return train, dev


def say_held_out(where: Path, train: Sequence[object], dev: Sequence[object]) -> None:
    """Say how many rows are held out of the one file that there is."""
    say(f"{where}: {len(train):,} rows to train on, {len(dev):,} held out to evaluate on")


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


def sequence_encoder(
    task: Task, *, tokenizer: Tokenizer, length: int, where: object = None
) -> Callable[[Sequence[Example]], Features]:
    """What makes a task's texts sequences; `where`, by default the task, names the rows in an error."""
    return partial(
        encode_sequences,
        tokenizer=tokenizer,
        task_kind=task.kind,
        labels=task.labels,
        offset=task.offset,
        scale=task.scale,
        length=length,
        where=where or task.title,
    )


def sequence_split(
    task: Task, examples: Sequence[Example], *, encode: Callable[[Sequence[Example]], Features]
) -> EvalSplit:
    """Texts to predict and, where they have labels, to evaluate."""
    features = encode(examples)

    def predictions(outputs: HeadOutputs) -> Predictions:
        values = predictions_from(np.asarray(outputs["scores"]), task)
        return dict(zip((one.id for one in examples), values, strict=True))

    def evaluate(outputs: HeadOutputs) -> Evaluation:
        assert features.targets is not None
        return evaluate_scores(np.asarray(outputs["scores"]), np.asarray(features.targets), task)

    def details(outputs: HeadOutputs) -> Details:
        return sequence_details(np.asarray(outputs["scores"]), np.asarray(features.targets), examples, task=task)

    known = features.targets is not None
    return EvalSplit(
        features=features,
        decode=predictions,
        evaluate=evaluate if known else None,
        details=details if known else None,
    )
