"""Scores of single classes and confusion matrices against scikit-learn; the worst errors by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.finetune.evaluation_file import evaluation
from electra.finetune.evaluation_table import evaluation_lines, score_line
from electra.metrics import classification
from electra.tasks.details import sequence_details, tag_details
from electra.tasks.rows import Example, Sentence
from electra.tasks.tables import read_table
from electra.tasks.task import Task
from electra.terminal import visible

truth = pytest.importorskip("sklearn.metrics")
TASK = Task(name="mine", title="mine", kind="classify", labels=("bad", "fair", "good"), metrics=("accuracy",))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_classes_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    gold, guessed = np.array(pairs).T
    matrix = classification.confusion(guessed, gold, classes=4)
    assert (matrix == truth.confusion_matrix(gold, guessed, labels=range(4))).all()
    found = classification.class_scores(np.eye(4)[guessed], np.eye(4)[gold])
    theirs = truth.precision_recall_fscore_support(gold, guessed, labels=range(4), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
        assert [getattr(one, name) for one in found] == pytest.approx(list(values)), name


@given(st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=20))
def test_classes_of_several_labels_are_scikit_learns(rows: list[tuple[bool, ...]]) -> None:
    table = np.array(rows)
    guessed, gold = table[:, :2], table[:, 2:]
    theirs = truth.precision_recall_fscore_support(gold, guessed, zero_division=0)
    found = classification.class_scores(guessed, gold)
    for name, values in zip(("precision", "recall", "f1"), theirs[:3], strict=True):
        assert [getattr(one, name) for one in found] == pytest.approx(list(values)), name


def test_the_worst_errors_are_the_surest() -> None:
    scores = np.log(np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]))
    gold = ["bad", "good", "bad", "fair"]
    examples = [Example(id=str(at), text=f"text {at}", label=label) for at, label in enumerate(gold)]
    found = sequence_details(scores, np.array([0, 2, 0, 1]), examples, task=TASK)
    assert found.rows == 4 and found.wrong == 3
    assert [(one.id, one.label, one.prediction) for one in found.errors] == [
        ("2", "bad", "good"),
        ("1", "good", "fair"),
        ("3", "fair", "good"),
    ]
    assert found.errors[0].probability == pytest.approx(0.8)
    assert found.errors[0].label_probability == pytest.approx(0.1)
    assert found.confusion == ((1, 0, 1), (0, 0, 1), (0, 1, 0))


def test_numbers_and_several_labels() -> None:
    task = Task(name="n", title="n", kind="regress", metrics=("mse",))
    examples = [Example(id=str(at), text="t", label=float(at)) for at in range(3)]
    found = sequence_details(np.array([[0.5], [4.0], [2.1]]), np.zeros(3), examples, task=task)
    assert [one.id for one in found.errors] == ["1", "0", "2"] and not found.classes
    several = Task(name="m", title="m", kind="multilabel", labels=("a", "b"), metrics=("micro_f1",))
    rows = [Example(id="0", text="t", label=("a",)), Example(id="1", text="t", label=("a", "b"))]
    found = sequence_details(np.array([[3.0, -3.0], [2.0, -1.0]]), np.array([[1, 0], [1, 1]]), rows, task=several)
    assert [(one.id, one.label, one.prediction) for one in found.errors] == [("1", ["a", "b"], ["a"])]
    assert [(one.label, one.recall) for one in found.classes] == [("a", 100.0), ("b", 0.0)]


def test_types_of_chunks_and_tags() -> None:
    sentences = [
        Sentence(id="0", words=("a", "b", "c"), tags=("B-X", "I-X", "O")),
        Sentence(id="1", words=("d",), tags=("B-Y",)),
    ]
    found = tag_details([["B-X", "O", "O"], ["B-Y"]], sentences, chunked=True)
    assert [(one.label, one.f1, one.support) for one in found.classes] == [("X", 0.0, 1), ("Y", 100.0, 1)]
    assert found.wrong == 1 and found.errors[0].prediction == ["B-X", "O", "O"]
    plain = [Sentence(id="0", words=("a", "b"), tags=("DET", "NOUN"))]
    found = tag_details([["DET", "DET"]], plain, chunked=False)
    assert [(one.label, one.precision, one.recall) for one in found.classes] == [
        ("DET", 50.0, 100.0),
        ("NOUN", 0.0, 0.0),
    ]


def test_lines_for_people_hold_hostile_text_as_text() -> None:
    scores = np.log(np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1]]))
    hostile = "\x1b[2J<script>\nalert(1)\t" + "x" * 300
    examples = [Example(id="0", text=hostile, label="good"), Example(id="1", text="b", pair="c", label="fair")]
    found = sequence_details(scores, np.array([2, 1]), examples, task=TASK)
    value = evaluation(TASK, found, scores={"accuracy": 50.0})
    assert score_line(value) == "mine: accuracy 50.00 (2 rows)"
    lines = [visible(line) for line in evaluation_lines(value)]
    assert all(line.isprintable() for line in lines) and max(map(len, lines)) < 130
    assert "1 of 2 rows are wrong (9 to 91 % of many more would be); the worst:" in lines
    more = [visible(line) for line in evaluation_lines(value | {"rows": 1000, "wrong": 10})]
    assert "10 of 1,000 rows are wrong; the worst:" in more
    assert any(line.startswith("  row 0: good as bad 0.90: \\x1b[2J<script> alert(1) xxx") for line in lines)
    assert lines[1].split() == ["class", "precision", "recall", "f1", "rows"]
    assert ["real", "\\", "predicted", "bad", "fair", "good"] in [line.split() for line in lines]


def test_an_error_is_named_by_the_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text('text,label\n"two\nlines",good\nb,fair\n')
    examples = read_table(tmp_path / "dev.csv", text="text", label="label")
    scores = np.log(np.array([[0.05, 0.05, 0.9], [0.1, 0.2, 0.7]]))
    value = evaluation(TASK, sequence_details(scores, np.array([2, 1]), examples, task=TASK), scores={"accuracy": 50.0})
    assert value["errors"][0]["place"] == "line 4" and value["errors"][0]["id"] == "1"
    assert any(line.startswith("  line 4: fair as good 0.70: b") for line in evaluation_lines(value))


def test_many_classes_are_shown_by_their_confusions() -> None:
    labels = tuple(f"c{at:02}" for at in range(40))
    task = Task(name="many", title="many", kind="classify", labels=labels, metrics=("accuracy",))
    guesses = np.eye(40)[[0, 0, 0, 5]]
    examples = [Example(id=str(at), text="t", label=labels[gold]) for at, gold in enumerate([1, 1, 2, 5])]
    found = sequence_details(guesses, np.array([1, 1, 2, 5]), examples, task=task)
    lines = evaluation_lines(evaluation(task, found, scores={"accuracy": 25.0}))
    at = lines.index("most often confused:")
    assert lines[at + 1 : at + 3] == ["  2 of c01 as c00", "  1 of c02 as c00"] and "... and 10 more" in lines
