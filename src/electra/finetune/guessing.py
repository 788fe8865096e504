"""The loss of an answer that does not look at the text."""

from __future__ import annotations

import numpy as np

from electra.finetune.task_model import HeadSpec
from electra.tasks.rows import Features


def guessing_loss(features: Features, spec: HeadSpec) -> float:
    """Mean training loss of the best answer that is the same for every row; 0 for tags, spans and pairs."""
    targets = features.targets
    if not isinstance(targets, np.ndarray) or not len(targets):
        return 0.0
    if spec.kind == "classify":
        weighed = np.bincount(targets, minlength=len(spec.labels)) * np.array(spec.class_weights or 1.0)
        return _entropy(weighed) * float(weighed.sum()) / len(targets)
    if spec.kind == "multilabel":
        return sum(_entropy(np.array([share, 1 - share])) for share in targets.mean(0))
    return float(targets.var()) if spec.kind == "regress" else 0.0


def _entropy(weights: np.ndarray) -> float:
    shares = weights[weights > 0] / weights.sum()
    return -float((shares * np.log(shares)).sum())
