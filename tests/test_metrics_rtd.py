"""Detection figures against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, precision_score, recall_score, roc_auc_score

from electra.metrics.rtd import auc, detection

LOGITS = st.one_of(st.integers(-3, 3).map(float), st.floats(-15, 15, width=32))  # whole numbers tie


@given(st.lists(st.tuples(LOGITS, st.booleans()), min_size=1, max_size=60))
def test_every_figure_is_scikit_learns(pairs: list[tuple[float, bool]]) -> None:
    z = np.array([logit for logit, _ in pairs], np.float32)
    y = np.array([label for _, label in pairs], np.bool_)
    found = detection(z, y)
    chances = 1 / (1 + np.exp(-z.astype(np.float64)))
    flagged = z > 0
    assert found.pop("rtd_loss") == pytest.approx(log_loss(y, chances, labels=[False, True]), rel=1e-6, abs=1e-9)
    area = found.pop("rtd_auc")
    if y.all() or not y.any():
        assert math.isnan(area)
    else:
        assert area == pytest.approx(roc_auc_score(y, z))
    assert found == pytest.approx(
        {
            "rtd_accuracy": accuracy_score(y, flagged),
            "rtd_precision": precision_score(y, flagged, zero_division=0),
            "rtd_recall": recall_score(y, flagged, zero_division=0),
            "replaced_rate": float(y.mean()),
        }
    )


def test_by_hand() -> None:
    scores, labels = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True])
    # Pairs (positive, negative): .4 > .1, .4 = .4 (half), .8 > .1, .8 > .4.
    assert auc(scores, labels) == 3.5 / 4
    assert auc(-scores, labels) == 0.5 / 4
    assert auc(np.zeros(4), labels) == 0.5
    assert auc(scores, scores > 0.3) == 1.0
    figures = detection(np.array([2.0, -1.0, 0.0, 1.0]), np.array([True, True, False, False]))
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(1)), math.log(2), math.log1p(math.exp(1))]
    assert figures["rtd_loss"] == pytest.approx(sum(expected) / 4)
    assert figures["rtd_precision"] == figures["rtd_recall"] == figures["rtd_accuracy"] == 0.5


def test_huge_logits_cost_what_they_should() -> None:
    figures = detection(np.array([1000.0, -1000.0, 1000.0]), np.array([True, False, False]))
    assert figures["rtd_loss"] == pytest.approx(1000 / 3)


def test_many_tokens() -> None:
    random = np.random.default_rng(0)
    z = np.round(random.normal(size=50_000), 2).astype(np.float32)
    y = random.random(50_000) < 1 / (1 + np.exp(2 - z))
    assert auc(z, y) == pytest.approx(roc_auc_score(y, z), abs=1e-12)
