"""SQuAD scores against torchmetrics, cases worked out by hand, and a search over every threshold."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import DataError
from electra.metrics.squad import normalise, squad_scores, text_scores
from electra.tasks.squad_files import gold_texts, read_squad

WORDS = ["the", "a", "Paris", "paris", "river,", "U.S.", "in 1817", "-", "“old”", "naïve", "An", "北京", "theatre"]
texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
golds = st.lists(texts.filter(bool), min_size=1, max_size=4).map(tuple)


def by_torchmetrics(predictions: dict[str, str], gold: dict[str, tuple[str, ...]]) -> tuple[float, float]:
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    found = squad(
        [{"prediction_text": predictions[id], "id": id} for id in gold],
        [{"answers": {"answer_start": [0] * len(a), "text": list(a)}, "id": id} for id, a in gold.items()],
    )
    return float(found["exact_match"]), float(found["f1"])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Cat's\tmat.", "cats mat"),
        ("An apple a day", "apple day"),
        ("theatre", "theatre"),
        ("the a an .", ""),
        ("U.S.", "us"),
        ("a-b", "ab"),
        ("“Quoted”", "“quoted”"),  # curly quotes are no ASCII punctuation
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_texts_are_compared_by_the_official_rules(text: str, left: str) -> None:
    assert normalise(text) == left


@given(st.lists(st.tuples(texts, golds), min_size=1, max_size=8))
def test_figures_of_1_1_equal_torchmetrics(rows: list[tuple[str, tuple[str, ...]]]) -> None:
    predictions = {str(at): predicted for at, (predicted, _) in enumerate(rows)}
    gold = {str(at): wanted for at, (_, wanted) in enumerate(rows)}
    scores = squad_scores(predictions, gold)
    assert set(scores) == {"exact", "f1", "total"}
    assert (scores["exact"], scores["f1"]) == pytest.approx(by_torchmetrics(predictions, gold), abs=1e-4)
    assert scores["exact"] <= scores["f1"] + 1e-9


@pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with squad/")
def test_figures_on_the_real_dev_set_equal_torchmetrics() -> None:
    questions = read_squad(Path(os.environ["ELECTRA_DATA"]) / "squad" / "dev-v1.1.json")[::8]
    draw = random.Random(0)
    predictions = {}
    for one in questions:
        text, start = draw.choice(one.answers)
        first, last = start + draw.choice([0, 0, -9, 4]), start + len(text) + draw.choice([0, 0, 12, -3])
        predictions[one.id] = one.context[max(0, first) : max(0, last)]
    scores = squad_scores(predictions, gold_texts(questions))
    assert 20 < scores["exact"] < scores["f1"] < 95
    assert (scores["exact"], scores["f1"]) == pytest.approx(
        by_torchmetrics(predictions, gold_texts(questions)), abs=1e-3
    )


def test_f1_counts_repeated_words_once_each() -> None:
    assert text_scores("to be or not to be", ["to be"]) == (0.0, pytest.approx(2 * (2 / 6) * 1 / (2 / 6 + 1)))
    assert text_scores("red red", ["red blue"]) == (0.0, 0.5)
    assert text_scores("blue", ["red", "the Blue!"]) == (1.0, 1.0)
    assert text_scores("", ["red"]) == (0.0, 0.0)


# q1 right, q2 half right, q3 and q4 have no answer
GOLD = {"q1": ("the river", "river"), "q2": ("old stone",), "q3": (), "q4": ()}
PREDICTED = {"q1": "River.", "q2": "stone house", "q3": "king", "q4": ""}


def test_2_0_without_odds_takes_the_texts_as_they_are() -> None:
    assert squad_scores(PREDICTED, GOLD) == {
        "exact": 50.0,
        "f1": 62.5,
        "total": 4.0,
        "HasAns_exact": 50.0,
        "HasAns_f1": 75.0,
        "HasAns_total": 2.0,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2.0,
    }


def test_2_0_blanks_answers_above_the_threshold_and_finds_the_best_one() -> None:
    predicted = PREDICTED | {"q4": "queen"}
    odds = {"q1": -5.0, "q2": 0.5, "q3": 3.0, "q4": -4.0}
    at = squad_scores(predicted, GOLD, null_odds=odds)  # -2.75: q2 and q3 blanked, q4 not
    assert (at["exact"], at["f1"]) == (50.0, 50.0)
    assert (at["HasAns_f1"], at["NoAns_f1"]) == (50.0, 50.0)
    # kept up to: none 2/4, q1 3/4, +q4 2/4, +q2 2/4 (f1 2.5/4), +q3 1/4 (f1 1.5/4)
    assert (at["best_exact"], at["best_exact_thresh"]) == (75.0, -5.0)
    assert (at["best_f1"], at["best_f1_thresh"]) == (75.0, -5.0)
    above = squad_scores(predicted, GOLD, null_odds=odds, threshold=0.5)  # an answer at the threshold is kept
    assert (above["exact"], above["f1"]) == (50.0, 62.5)


def test_blanking_everything_has_a_threshold_that_does_so() -> None:
    odds = {"a": 1.0, "b": 2.0}
    best = squad_scores({"a": "x", "b": "y"}, {"a": (), "b": ()}, null_odds=odds)
    assert (best["best_exact"], best["best_exact_thresh"]) == (100.0, 0.0)
    assert "HasAns_exact" not in best
    assert squad_scores({"a": "x", "b": "y"}, {"a": (), "b": ()}, null_odds=odds, threshold=0.0)["exact"] == 100.0


def test_an_empty_gold_text_among_others_counts_in_1_1_only() -> None:
    gold = {"q": ("interventionism", ".")}
    assert squad_scores({"q": "the"}, gold)["exact"] == 100.0
    assert squad_scores({"q": "the"}, gold, null_odds={"q": -9.0})["exact"] == 0.0


rows_2_0 = st.lists(
    st.tuples(texts, st.one_of(st.just(()), golds), st.integers(-4, 4).map(float)), min_size=1, max_size=12
)


@given(rows_2_0, st.randoms(use_true_random=False))
def test_the_best_threshold_is_as_good_as_any(rows: list[tuple[str, tuple[str, ...], float]], draw: object) -> None:
    assert isinstance(draw, random.Random)
    predicted = {str(at): row[0] for at, row in enumerate(rows)}
    gold = {str(at): row[1] for at, row in enumerate(rows)}
    odds = {str(at): row[2] for at, row in enumerate(rows)}
    scores = squad_scores(predicted, gold, null_odds=odds)
    tried = [squad_scores(predicted, gold, null_odds=odds, threshold=t / 2) for t in range(-12, 12)]
    for name in ("exact", "f1"):
        assert scores[f"best_{name}"] == pytest.approx(max(one[name] for one in tried))
        there = squad_scores(predicted, gold, null_odds=odds, threshold=scores[f"best_{name}_thresh"])
        assert there[name] == pytest.approx(scores[f"best_{name}"])
    for one in (scores, *tried):
        assert 0 <= one["exact"] <= one["f1"] + 1e-9 <= 100 + 1e-6
        if "NoAns_f1" in one:
            assert one["NoAns_exact"] == one["NoAns_f1"]
    ids = list(gold)
    draw.shuffle(ids)
    again = squad_scores(predicted, {id: gold[id] for id in ids}, null_odds=odds)
    assert again == pytest.approx(scores)


def test_questions_without_a_prediction_are_named() -> None:
    with pytest.raises(DataError, match="predictions: nothing for 1 of 2 questions, the first is 'b'"):
        squad_scores({"a": "x"}, {"a": ("x",), "b": ("y",)})
    with pytest.raises(DataError, match="null odds: nothing for 1 of 1 questions"):
        squad_scores({"a": "x"}, {"a": ("x",)}, null_odds={})
    with pytest.raises(DataError, match="null odds: not finite for question 'a'"):
        squad_scores({"a": "x"}, {"a": ("x",)}, null_odds={"a": float("nan")})
    with pytest.raises(DataError, match="none to score"):
        squad_scores({}, {})
