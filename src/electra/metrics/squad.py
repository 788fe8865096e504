"""Exact match and F1 of SQuAD 1.1 and 2.0, by the rules of the official scorers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from electra.errors import DataError

NULL_THRESHOLD = -2.75  # where the released code blanks an answer; tuned on SQuAD 2.0 with the large model

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """The text as it is compared: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def text_scores(prediction: str, gold: Collection[str], *, no_answer: bool = False) -> tuple[float, float]:
    """Exact match and F1 (0 to 1) against the best of the gold texts; none of them says: no answer is right.

    `no_answer` takes the rule of 2.0 that a gold text of which nothing is left (`.` or `the`) counts only where there
    is no other. Two texts of which nothing is left agree; the first 1.1 scorer gave that exact match an F1 of 0.
    """
    predicted = normalise(prediction)
    wanted = {normalise(text) for text in gold}
    if no_answer:
        wanted = {text for text in wanted if text} or {""}
    return float(predicted in wanted), max((_f1(predicted, text) for text in wanted), default=0.0)


def squad_scores(
    predictions: Mapping[str, str],
    gold: Mapping[str, tuple[str, ...]],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float = NULL_THRESHOLD,
) -> dict[str, float]:
    """Percentages under the official names; `gold` gives every right text of a question, none if it has no answer.

    Always `exact`, `f1`, `total`. Where some question has no answer, or null odds are given, the rules are those of
    2.0, with `HasAns_` and `NoAns_` figures. Null odds blank the answers above `threshold`, and add `best_exact`,
    `best_f1` and the `_thresh` of each: the best that any threshold gives on these very questions.
    """
    ids = list(gold)
    if not ids:
        raise DataError("questions", "there are none to score")
    _all_there(predictions, ids, what="predictions")
    second = null_odds is not None or any(not gold[id] for id in ids)
    pairs = np.array([text_scores(predictions[id], gold[id], no_answer=second) for id in ids], dtype=np.float64)
    has_answer = np.array([bool(gold[id]) for id in ids])
    blank = np.where(has_answer, 0.0, 1.0)
    best: dict[str, float] = {}
    if null_odds is not None:
        _all_there(null_odds, ids, what="null odds")
        odds = np.array([null_odds[id] for id in ids], dtype=np.float64)
        if not np.isfinite(odds).all():
            raise DataError("null odds", f"not finite for question '{ids[int(np.argmin(np.isfinite(odds)))]}'")
        for column, name in enumerate(("exact", "f1")):
            best[f"best_{name}"], best[f"best_{name}_thresh"] = best_threshold(pairs[:, column], blank=blank, odds=odds)
        pairs = np.where((odds > threshold)[:, None], blank[:, None], pairs)
    figures = _means(pairs)
    if second:
        for prefix, chosen in (("HasAns_", has_answer), ("NoAns_", ~has_answer)):
            if chosen.any():
                figures |= {prefix + name: value for name, value in _means(pairs[chosen]).items()}
    return figures | best


def best_threshold(
    answered: NDArray[np.float64], *, blank: NDArray[np.float64], odds: NDArray[np.float64]
) -> tuple[float, float]:
    """The best mean in percent, and the lowest threshold that gives it; answers with odds above it are blanked.

    Questions with equal odds are kept or blanked together. The official search also stops between them, at figures
    that no threshold gives, and calls it 0 where blanking everything is best; here that threshold is below all odds.
    """
    order = np.argsort(odds, kind="stable")
    ordered = odds[order]
    totals = blank.sum() + np.concatenate([[0.0], np.cumsum((answered - blank)[order])])
    real = np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])
    at = int(np.argmax(np.where(real, totals, -np.inf)))
    # sums in another order differ in the last bits; a threshold's own figure is the one to show
    mean = float(np.where(odds <= ordered[at - 1], answered, blank).mean()) if at else float(blank.mean())
    return 100 * mean, float(ordered[at - 1]) if at else float(ordered[0]) - 1.0


def _f1(predicted: str, wanted: str) -> float:
    ours, theirs = predicted.split(), wanted.split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _means(pairs: NDArray[np.float64]) -> dict[str, float]:
    exact, f1 = 100 * pairs.mean(axis=0)
    return {"exact": float(exact), "f1": float(f1), "total": float(len(pairs))}


def _all_there(values: Mapping[str, object], ids: list[str], *, what: str) -> None:
    missing = [id for id in ids if id not in values]
    if missing:
        raise DataError(what, f"nothing for {len(missing)} of {len(ids)} questions, the first is '{missing[0]}'")
