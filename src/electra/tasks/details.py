"""What a score does not show: each class alone, which classes are confused, and the worst errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.metrics import classification, tagging
from electra.metrics.probabilities import sigmoid, softmax
from electra.tasks.rows import Example, Sentence
from electra.tasks.task import Task

MOST_ERRORS = 20
MOST_CLASSES = 100
"""Of a confusion matrix."""
MAX_TEXT = 500
"""Characters of a text that are kept with an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRow:
    """One class, or one type of chunk: percent, and counts of rows or chunks."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrong:
    """One wrong prediction."""

    id: str
    place: str = ""
    """Where the row stands in its file, `line 12`; empty where that is not known."""
    text: str
    pair: str | None = None
    label: Any
    """A class, a list of classes or tags, or a number."""
    prediction: Any
    probability: float | None = None
    """Of the predicted class."""
    label_probability: float | None = None
    """Of the right one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """Of the predictions of one split."""

    rows: int
    classes: tuple[ClassRow, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """A row for each real class, a column for each predicted one; of one class a text, and not of too many classes."""
    wrong: int = 0
    """Rows with an error; 0 where predictions are numbers."""
    errors: tuple[Wrong, ...] = field(default=())
    """The worst first."""


def sequence_details(
    scores: NDArray[Any], targets: NDArray[Any], examples: Sequence[Example], *, task: Task
) -> Details:
    """Of a head's (N, C) scores for texts; the errors of a class are the worst where the network is surest."""
    if task.kind == "regress":
        return _of_numbers(scores[:, 0].astype(np.float64), examples)
    if task.kind == "multilabel":
        return _of_several(scores, targets, examples, task=task)
    probabilities = softmax(scores)
    predicted, count = scores.argmax(1), len(task.labels)
    one_hot = np.eye(count, dtype=bool)
    every = np.arange(len(targets))
    surest = probabilities[every, predicted]
    wrong = [at for at in np.argsort(-surest, kind="stable").tolist() if predicted[at] != targets[at]]
    matrix = classification.confusion(predicted, targets, classes=count) if count <= MOST_CLASSES else np.zeros((0, 0))
    return Details(
        rows=len(targets),
        classes=_class_rows(classification.class_scores(one_hot[predicted], one_hot[targets]), task.labels),
        confusion=tuple(tuple(int(value) for value in row) for row in matrix),
        wrong=len(wrong),
        errors=tuple(
            wrong_row(
                examples[at],
                prediction=task.labels[predicted[at]],
                probability=float(surest[at]),
                label_probability=float(probabilities[at, targets[at]]),
            )
            for at in wrong[:MOST_ERRORS]
        ),
    )


def tag_details(predicted: Sequence[Sequence[str]], sentences: Sequence[Sentence], *, chunked: bool) -> Details:
    """Of tags: each type of chunk, or each tag; the worst sentence has the most wrong words."""
    gold = [tuple(one.tags or ()) for one in sentences]
    if chunked:
        by_type = tagging.chunk_scores(predicted, gold).by_type
        classes = _class_rows(list(by_type.values()), list(by_type))
    else:
        names = sorted({tag for tags in (*predicted, *gold) for tag in tags})
        flat = [
            np.array([tag for tags in side for tag in tags])[:, None] == np.array(names) for side in (predicted, gold)
        ]
        classes = _class_rows(classification.class_scores(*flat), names)
    counts = [sum(a != b for a, b in zip(one, tags, strict=True)) for one, tags in zip(predicted, gold, strict=True)]
    wrong = [at for at in np.argsort([-count for count in counts], kind="stable").tolist() if counts[at]]
    return Details(
        rows=len(sentences),
        classes=classes,
        wrong=len(wrong),
        errors=tuple(
            Wrong(
                id=sentences[at].id,
                text=" ".join(sentences[at].words)[:MAX_TEXT],
                label=list(gold[at]),
                prediction=list(predicted[at]),
            )
            for at in wrong[:MOST_ERRORS]
        ),
    )


def _of_numbers(predicted: NDArray[np.float64], examples: Sequence[Example]) -> Details:
    gold = np.array([one.label for one in examples], np.float64)
    apart = np.abs(predicted - gold)
    order = np.argsort(-apart, kind="stable")[:MOST_ERRORS].tolist()
    errors = tuple(wrong_row(examples[at], prediction=float(predicted[at])) for at in order)
    return Details(rows=len(examples), errors=errors)


def _of_several(scores: NDArray[Any], targets: NDArray[Any], examples: Sequence[Example], *, task: Task) -> Details:
    probabilities = sigmoid(scores)
    predicted = scores > 0
    apart = np.abs(probabilities - targets).sum(1)
    wrong = [
        at for at in np.argsort(-apart, kind="stable").tolist() if (predicted[at] != targets[at].astype(bool)).any()
    ]
    errors = tuple(
        wrong_row(examples[at], prediction=[name for name, on in zip(task.labels, predicted[at], strict=True) if on])
        for at in wrong[:MOST_ERRORS]
    )
    classes = _class_rows(classification.class_scores(predicted, targets), task.labels)
    return Details(rows=len(examples), classes=classes, wrong=len(wrong), errors=errors)


def wrong_row(
    example: Example, *, prediction: Any, probability: float | None = None, label_probability: float | None = None
) -> Wrong:
    """A row with the prediction that is wrong, its texts cut."""
    return Wrong(
        id=example.id,
        place=example.place,
        text=example.text[:MAX_TEXT],
        pair=None if example.pair is None else example.pair[:MAX_TEXT],
        label=list(example.label) if isinstance(example.label, tuple) else example.label,
        prediction=prediction,
        probability=probability,
        label_probability=label_probability,
    )


def _class_rows(scores: Sequence[classification.ClassScore], names: Sequence[str]) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(
            label=name,
            precision=100 * one.precision,
            recall=100 * one.recall,
            f1=100 * one.f1,
            support=one.support,
            predicted=one.predicted,
        )
        for name, one in zip(names, scores, strict=True)
    )
