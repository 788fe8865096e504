"""Pairs of texts that belong together, or that have a graded score: two vectors a row, compared by their cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError, DataError
from electra.metrics.regression import pearson, ranks, spearman
from electra.metrics.retrieval import Retrieved, mrr, recall, retrieve, unit
from electra.progress import say
from electra.tasks.columns import Columns, find_columns, score_column
from electra.tasks.details import MAX_TEXT, MOST_ERRORS, Details, Wrong, wrong_row
from electra.tasks.features import encode_sequences
from electra.tasks.hold_out import hold_out_examples
from electra.tasks.rows import Example, Features, HeadOutputs
from electra.tasks.scoring import Evaluation
from electra.tasks.tables import numbers_of, read_table
from electra.tasks.task import Task
from electra.tasks.task_data import EvalSplit, TaskData, say_held_out
from electra.tokenizer.codec import Tokenizer

RETRIEVAL, GRADED = ("mrr", "recall@1", "recall@10"), ("spearman", "pearson")
"""Metrics of pairs, and of pairs with a score."""
NO_TEXT = -1
"""Number of a hard negative that a row does not have."""
_SAME = 1e-4  # 1 - |mean of the unit vectors|^2: below, every text has the same vector


def load_pairs(
    name: str, files: Mapping[str, Path], *, columns: Columns, tokenizer: Tokenizer, config: FinetuneConfig
) -> TaskData:
    """A task from tables `train` and `dev`; without `dev`, rows of `train` are held out.

    `columns.label` is a graded score; without one, the two texts of a row belong together.
    """
    if config.batch_size < 2:
        raise ConfigError("batch_size", "a pair is compared with the others of its batch", fix="at least 2")
    found = find_columns(files["train"], columns, kind="pairs")
    _check(found, asked=columns, path=files["train"])

    assert found.text is not None
    read = partial(read_table, text=found.text, pair=found.pair, label=found.label, kind="pairs")
    train = read(files["train"], negative=found.negative)
    if found.label is not None:
        fix = "scores must differ; name another column with --score, or leave it out where every pair is right"
        numbers_of(train, column=found.label, path=files["train"], fix=fix)
    if "dev" in files:
        dev = read(files["dev"])
    else:
        train, dev = hold_out_examples(
            train, kind="pairs", share=config.hold_out, seed=config.hold_out_seed, where=files["train"]
        )
        say_held_out(files["train"], train, dev)
    if len({one.pair for one in dev}) < 2:
        raise DataError(files.get("dev", files["train"]), "has one second text only: nothing to find it among")
    task = Task(name=name, title=name, kind="pairs", metrics=RETRIEVAL if found.label is None else GRADED)
    return TaskData(
        task=task,
        train=encode_pairs(train, tokenizer=tokenizer, length=config.length, where=name),
        eval_splits={"dev": pair_split(dev, tokenizer=tokenizer, length=config.length, where=name)},
        rows={"train": len(train), "dev": len(dev)},
        columns=found,
        held_out="dev" not in files,
    )


def encode_pairs(examples: Sequence[Example], *, tokenizer: Tokenizer, length: int, where: object = "data") -> Features:
    """`[CLS] text [SEP]` of both texts of each example, one after the other, and of its hard negative where there are.

    Targets are the scores, or else the numbers of the texts: those of equal tokens, which is all the network reads,
    have equal numbers. An empty hard negative has the number -1.
    """
    negatives = any(one.negative is not None for one in examples)
    group = 3 if negatives else 2
    texts = [text or "" for one in examples for text in (one.text, one.pair, one.negative)[:group]]
    alone = [Example(id=str(number), text=text) for number, text in enumerate(texts)]
    features = encode_sequences(alone, tokenizer=tokenizer, task_kind="pairs", length=length, where=where)
    targets: NDArray[Any]
    if examples and all(isinstance(one.label, float | int) for one in examples):
        targets = np.repeat(np.array([one.label for one in examples], np.float32), group)
    else:
        numbers: dict[tuple[int, ...], int] = {}
        targets = np.array([numbers.setdefault(tuple(ids), len(numbers)) for ids in features.ids], np.int64)
        if negatives:
            targets[2::group][[not one.negative for one in examples]] = NO_TEXT
    rows = np.repeat(np.arange(len(examples)), group)
    return replace(features, targets=targets, rows=rows, group=group)


def pair_split(examples: Sequence[Example], *, tokenizer: Tokenizer, length: int, where: object) -> EvalSplit:
    """Pairs to evaluate: by their scores where they have some, otherwise by finding each second text among all."""
    bare = [replace(one, negative=None) for one in examples]
    features = encode_pairs(bare, tokenizer=tokenizer, length=length, where=where)
    targets = np.asarray(features.targets)
    graded = np.issubdtype(targets.dtype, np.floating)
    gold = np.array([one.label for one in examples] if graded else [], np.float64)

    def found(outputs: HeadOutputs) -> Retrieved:
        return _retrieved(np.asarray(outputs["vectors"]), targets)

    def evaluate(outputs: HeadOutputs) -> Evaluation:
        if graded:
            predicted = cosines(outputs)
            scores = {"spearman": 100 * spearman(predicted, gold), "pearson": 100 * pearson(predicted, gold)}
        else:
            places = found(outputs).ranks
            scores = {"mrr": 100 * mrr(places), **{f"recall@{k}": 100 * recall(places, top=k) for k in (1, 10)}}
        middle = unit(np.asarray(outputs["vectors"])).mean(0, dtype=np.float64)
        return Evaluation(scores=scores, stuck=bool(1 - middle @ middle < _SAME))

    def details(outputs: HeadOutputs) -> Details:
        if graded:
            return _of_scores(cosines(outputs), gold, examples)
        return _of_retrieval(found(outputs), examples, targets[1::2])

    return EvalSplit(
        features=features,
        decode=lambda outputs: dict(zip((one.id for one in examples), cosines(outputs).tolist(), strict=True)),
        evaluate=evaluate,
        details=details,
    )


def cosines(outputs: HeadOutputs) -> NDArray[np.float64]:
    """The cosine of each pair, from the vectors of first and second texts in turn."""
    units = unit(np.asarray(outputs["vectors"])).astype(np.float64)
    return np.asarray((units[::2] * units[1::2]).sum(1), np.float64)


def _check(found: Columns, *, asked: Columns, path: Path) -> None:
    if found.negative is not None and found.label is not None:
        reason = "a graded score says how near two texts are; it has no use for a third"
        raise ConfigError("--negative", reason, fix="leave out --negative or --score")
    if (found.text, found.pair) != (asked.text or "text", asked.pair or "pair"):
        guess = f"reading the texts from columns '{found.text}' and '{found.pair}'"
        say(f"{path}: {guess} (--text and --pair name others)")
    if (scores := score_column(path, found)) is not None:
        say(f"{path}: every pair counts as right; if column '{scores}' grades them, give --score {scores}")


def _retrieved(vectors: NDArray[Any], numbers: NDArray[Any]) -> Retrieved:
    """Each second text among the distinct ones, without the text itself and others that are right as well."""
    first, second = numbers[::2].tolist(), numbers[1::2].tolist()
    distinct, at = np.unique(numbers[1::2], return_index=True)
    place = {number: row for row, number in enumerate(distinct.tolist())}
    right: dict[int, set[int]] = {}
    for one, other in zip(first, second, strict=True):
        right.setdefault(one, {one} & place.keys()).add(other)
    return retrieve(
        vectors[::2],
        vectors[1::2][at],
        [place[number] for number in second],
        excluded=[[place[number] for number in right[one] - {other}] for one, other in zip(first, second, strict=True)],
    )


def _of_retrieval(found: Retrieved, examples: Sequence[Example], numbers: NDArray[Any]) -> Details:
    """The worst error is the one where the wrong text lies nearer by the most."""
    texts = [examples[at].pair or "" for at in np.unique(numbers, return_index=True)[1]]
    apart = found.found_cosines - found.cosines
    wrong = [at for at in np.argsort(-apart, kind="stable").tolist() if found.ranks[at] > 1]
    errors = tuple(
        Wrong(
            id=examples[at].id,
            place=examples[at].place,
            text=examples[at].text[:MAX_TEXT],
            label=(examples[at].pair or "")[:MAX_TEXT],
            prediction=texts[found.found[at]][:MAX_TEXT],
        )
        for at in wrong[:MOST_ERRORS]
    )
    return Details(rows=len(examples), wrong=len(wrong), errors=errors)


def _of_scores(predicted: NDArray[np.float64], gold: NDArray[np.float64], examples: Sequence[Example]) -> Details:
    """The worst error is the one whose rank by cosine is furthest from its rank by score."""
    apart = np.abs(ranks(predicted) - ranks(gold))
    errors = tuple(
        wrong_row(examples[at], prediction=float(predicted[at]))
        for at in np.argsort(-apart, kind="stable")[:MOST_ERRORS].tolist()
    )
    return Details(rows=len(examples), errors=errors)
