"""What a head's scores are worth: beside scikit-learn and scipy, and runs that are stuck on one answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.rows import Sentence
from electra.tasks.scoring import evaluate_scores, evaluate_tags, predictions_from
from electra.tasks.task import Task

sklearn_metrics = pytest.importorskip("sklearn.metrics")
scipy_stats = pytest.importorskip("scipy.stats")


def a_task(kind: str, labels: int, *, scale: float = 1.0) -> Task:
    names = tuple(f"label {number}" for number in range(labels))
    return Task(name="t", title="T", kind=kind, labels=names, scale=scale)  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_classes_are_scored_as_scikit_learn_does(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(2, 40))
    scores, targets = random.normal(size=(rows, classes)), random.integers(0, classes, rows)
    evaluation = evaluate_scores(scores, targets, a_task("classify", classes))
    outputs = scores.argmax(1)
    assert evaluation.scores["accuracy"] == pytest.approx(100 * sklearn_metrics.accuracy_score(targets, outputs))
    assert evaluation.scores["matthews"] == pytest.approx(100 * sklearn_metrics.matthews_corrcoef(targets, outputs))
    macro = sklearn_metrics.f1_score(targets, outputs, average="macro", zero_division=0)
    assert evaluation.scores["macro_f1"] == pytest.approx(100 * macro)
    assert ("f1" in evaluation.scores) == (classes == 2)
    if classes == 2:
        assert evaluation.scores["f1"] == pytest.approx(
            100 * sklearn_metrics.f1_score(targets, outputs, zero_division=0)
        )
    assert evaluation.stuck == (len(set(outputs)) == 1 and len(set(targets)) > 1)
    assert predictions_from(scores, a_task("classify", classes)) == [f"label {number}" for number in outputs]


@given(st.integers(0, 10**6))
def test_several_classes_are_scored_as_scikit_learn_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(2, 30))
    scores, targets = random.normal(size=(rows, 4)), random.integers(0, 2, (rows, 4)).astype(np.float32)
    evaluation = evaluate_scores(scores, targets, a_task("multilabel", 4))
    for average in ("micro", "macro"):
        expected = sklearn_metrics.f1_score(targets, scores > 0, average=average, zero_division=0)
        assert evaluation.scores[f"{average}_f1"] == pytest.approx(100 * expected)
    assert evaluation.scores["subset_accuracy"] == pytest.approx(
        100 * sklearn_metrics.accuracy_score(targets, scores > 0)
    )


@given(st.integers(0, 10**6))
def test_numbers_are_scored_as_scipy_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(3, 40))
    gold = random.integers(0, 20, rows) / 4
    gold[0] = 5.0 - gold[1]
    if len(set(gold)) == 1:
        gold[0] += 1
    scores = random.normal(size=(rows, 1))
    evaluation = evaluate_scores(scores, gold / 5, a_task("regress", 0, scale=5.0))
    assert evaluation.scores["spearman"] == pytest.approx(100 * scipy_stats.spearmanr(scores[:, 0], gold).statistic)
    assert evaluation.scores["pearson"] == pytest.approx(100 * scipy_stats.pearsonr(scores[:, 0], gold).statistic)
    assert evaluation.scores["mse"] == pytest.approx(sklearn_metrics.mean_squared_error(gold, scores[:, 0]))


def test_stuck_runs() -> None:
    classes, targets = a_task("classify", 3), np.array([0, 0, 1, 2])
    majority = evaluate_scores(
        np.array([[1.0, 0, 0]] * 4) + np.random.default_rng(0).random((4, 3)) / 9, targets, classes
    )
    assert majority.stuck and majority.scores["accuracy"] == 50.0 and majority.scores["matthews"] == 0.0
    assert not evaluate_scores(np.eye(3)[[0, 0, 0, 1]], targets, classes).stuck
    assert not evaluate_scores(np.eye(3)[[0, 0]], np.array([0, 0]), classes).stuck, "there is nothing else to say"
    numbers, gold = a_task("regress", 0, scale=5.0), np.linspace(0, 1, 50)
    still = 2.5 + np.random.default_rng(0).normal(size=(50, 1)) * 1e-3
    assert evaluate_scores(still, gold, numbers).stuck
    assert not evaluate_scores(still * 2 + np.linspace(0, 0.3, 50)[:, None], gold, numbers).stuck
    several = a_task("multilabel", 2)
    assert evaluate_scores(np.array([[1.0, -1]] * 3), np.array([[1, 0], [0, 1], [1, 1]]), several).stuck
    sentences = [Sentence(id="0", words=("a", "b"), tags=("O", "S-X"))]
    assert evaluate_tags([["O", "O"]], sentences, chunked=True).stuck
    assert not evaluate_tags([["O", "S-X"]], sentences, chunked=True).stuck
