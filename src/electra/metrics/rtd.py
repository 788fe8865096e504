"""Metrics of replaced token detection."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def auc(scores: NDArray[np.floating], labels: NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, ties counting half; NaN with one class or NaN scores."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives or np.isnan(scores).any():
        return float("nan")
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    first = np.searchsorted(ordered, ordered, side="left")
    last = np.searchsorted(ordered, ordered, side="right")
    ranks = (first + last + 1) / 2
    return float((ranks[labels[order]].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def detection(logits: NDArray[np.floating], labels: NDArray[np.bool_]) -> dict[str, float]:
    """Loss, accuracy, precision, recall, AUC and replaced rate; a token is flagged when its logit is above 0."""
    z = logits.astype(np.float64)
    flagged = z > 0
    hits = int((flagged & labels).sum())
    with np.errstate(invalid="ignore"):  # the loss of a model that has diverged is NaN, and that is no news to warn of
        loss = float(np.mean(np.logaddexp(0.0, z) - z * labels))
    return {
        "rtd_loss": loss,
        "rtd_accuracy": float(np.mean(flagged == labels)),
        "rtd_precision": hits / max(1, int(flagged.sum())),
        "rtd_recall": hits / max(1, int(labels.sum())),
        "rtd_auc": auc(z, labels),
        "replaced_rate": float(labels.mean()),
    }


def entropy(rate: float) -> float:
    """The loss of always answering with the base rate, in nats."""
    if not 0.0 < rate < 1.0:
        return 0.0
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
