"""Retrieval metrics against scikit-learn and against what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from electra.metrics.retrieval import mrr, recall, retrieve, unit


def test_scikit_learn_measures_the_same() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    candidates = random.normal(size=(40, 8)).astype(np.float32)
    queries = (candidates + random.normal(scale=1.5, size=(40, 8))).astype(np.float32)
    found = retrieve(queries, candidates, range(40))
    scores = metrics.pairwise.cosine_similarity(queries, candidates)
    assert 1 < found.ranks.max() < 40
    for top in (1, 3, 10):
        wanted = metrics.top_k_accuracy_score(np.arange(40), scores, k=top, labels=np.arange(40))
        assert recall(found.ranks, top=top) == pytest.approx(wanted)
    # With one right label a row, label ranking average precision is the mean reciprocal rank.
    assert mrr(found.ranks) == pytest.approx(metrics.label_ranking_average_precision_score(np.eye(40), scores))
    np.testing.assert_allclose(found.cosines, np.diag(scores), atol=1e-6)
    assert found.found.tolist() == scores.argmax(1).tolist()
    np.testing.assert_allclose(found.found_cosines, scores.max(1), atol=1e-6)


def test_excluded_candidates_do_not_stand_in_front() -> None:
    candidates = np.eye(4, dtype=np.float32)
    query = np.array([[0.9, 0.8, 0.7, 0.1]], np.float32)
    assert retrieve(query, candidates, [2]).ranks.tolist() == [3]
    found = retrieve(query, candidates, [2], excluded=[[0]])
    assert found.ranks.tolist() == [2] and found.found.tolist() == [1]
    assert retrieve(query, candidates, [2], excluded=[[0, 1]]).ranks.tolist() == [1]


def test_many_queries_are_ranked_in_blocks() -> None:
    candidates = np.random.default_rng(1).normal(size=(1100, 5)).astype(np.float32)
    assert (retrieve(candidates, candidates, range(1100)).ranks == 1).all()


def test_one_vector_for_all_finds_nothing_and_nor_does_a_diverged_network() -> None:
    same = np.ones((5, 3), np.float32)
    assert retrieve(same, same, range(5)).ranks.tolist() == [5] * 5, "equal cosines count against the right one"
    broken = np.full((5, 3), np.nan, np.float32)
    assert retrieve(broken, broken, range(5)).ranks.tolist() == [5] * 5
    assert mrr([]) == recall([], top=1) == 0.0
    assert unit([[0.0, 0.0], [3.0, 4.0]]).tolist() == [[0.0, 0.0], [pytest.approx(0.6), pytest.approx(0.8)]]
