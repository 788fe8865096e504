"""Scores of fine-tuned models against scikit-learn and scipy, and by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from electra.metrics import classification, regression
from electra.metrics.spread import Summary, median_place, share_interval, summarise
from electra.metrics.tagging import chunk_scores, chunks, tag_accuracy

PAIRS = st.integers(1, 5).flatmap(
    lambda k: st.lists(st.tuples(st.integers(0, k), st.integers(0, k)), min_size=1, max_size=60)
)


def quietly(function: Callable[..., float], *args: object, **options: object) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(*args, **options))


@given(PAIRS)
def test_classes_as_scikit_learn_scores_them(pairs: list[tuple[int, int]]) -> None:
    p, y = (np.array(column) for column in zip(*pairs, strict=True))
    assert classification.accuracy(p, y) == pytest.approx(sklearn.metrics.accuracy_score(y, p))
    macro = quietly(sklearn.metrics.f1_score, y, p, average="macro", zero_division=0)
    assert classification.macro_f1(p, y) == pytest.approx(macro)
    assert classification.matthews(p, y) == pytest.approx(
        quietly(sklearn.metrics.matthews_corrcoef, y, p), rel=1e-12, abs=1e-12
    )
    binary = quietly(sklearn.metrics.f1_score, y == 1, p == 1, zero_division=0)
    assert classification.f1(p, y) == pytest.approx(binary)
    assert classification.majority_share(p) == max(list(p).count(name) for name in p) / len(p)


def test_classes_by_hand() -> None:
    p, y = [1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0]
    # 2 true positives, 1 false positive, 1 false negative, 2 true negatives
    assert classification.f1(p, y) == pytest.approx(2 / 3)
    assert classification.matthews(p, y) == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3))
    assert classification.accuracy(p, y) == pytest.approx(4 / 6)
    assert classification.f1(p, y, positive=0) == pytest.approx(2 / 3)
    assert classification.matthews([0, 1, 2], [0, 1, 2]) == pytest.approx(1.0)
    assert classification.matthews([1, 0], [0, 1]) == pytest.approx(-1.0)
    # 4 rows, 3 right, sum of p*t = 2*1 + 1*2 + 1*1 = 5: (3*4 - 5) / sqrt((16 - 6) * (16 - 6))
    assert classification.matthews([0, 0, 1, 2], [0, 1, 1, 2]) == pytest.approx((3 * 4 - 5) / 10)
    assert classification.majority_share([2, 2, 0, 2]) == 0.75


def test_undefined_classes_are_zero_and_silent() -> None:
    for labels in ([0, 0, 0], [1, 1, 1], [0, 1, 0]):
        assert classification.matthews([0, 0, 0], labels) == 0.0
    assert classification.f1([0, 0], [0, 0]) == 0.0
    scores = (classification.accuracy, classification.f1, classification.macro_f1, classification.matthews)
    assert [score([], []) for score in scores] == [0.0] * 4
    assert classification.majority_share([]) == 0.0


def test_large_counts_do_not_overflow() -> None:
    y = np.arange(200_000) % 2
    assert classification.matthews(y, y) == 1.0
    assert classification.matthews(1 - y, y) == -1.0


@pytest.mark.parametrize("score", [classification.accuracy, classification.matthews, regression.pearson])
def test_shapes_are_checked(score: Callable[..., float]) -> None:
    for predictions in ([0, 1], [[0, 1, 1]]):
        with pytest.raises(ValueError, match="a row is needed"):
            score(predictions, [0, 1, 1])
    with pytest.raises(ValueError, match="two tables of one shape"):
        classification.multilabel([0, 1], [0, 1])


@given(
    st.integers(1, 4).flatmap(
        lambda k: st.lists(st.lists(st.booleans(), min_size=2 * k, max_size=2 * k), min_size=1, max_size=20)
    )
)
def test_multilabel_as_scikit_learn_scores_it(rows: list[list[bool]]) -> None:
    table = np.array(rows, int)
    half = table.shape[1] // 2
    p, y = table[:, :half], table[:, half:]
    found = classification.multilabel(p, y)
    if half == 1:  # scikit-learn takes one column for classes
        assert found["micro_f1"] == found["macro_f1"] == classification.f1(p[:, 0], y[:, 0])
        assert found["subset_accuracy"] == classification.accuracy(p[:, 0], y[:, 0])
        return
    assert found == pytest.approx(
        {
            "micro_f1": quietly(sklearn.metrics.f1_score, y, p, average="micro", zero_division=0),
            "macro_f1": quietly(sklearn.metrics.f1_score, y, p, average="macro", zero_division=0),
            "subset_accuracy": sklearn.metrics.accuracy_score(y, p),
        }
    )


def test_multilabel_by_hand() -> None:
    found = classification.multilabel([[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [0, 1, 0]])
    # columns: 1 hit of 2 + 1, 1 hit of 1 + 1, nothing
    assert found == pytest.approx({"micro_f1": 2 * 2 / 5, "macro_f1": (2 / 3 + 1 + 0) / 3, "subset_accuracy": 0.5})
    empty = classification.multilabel(np.zeros((0, 3)), np.zeros((0, 3)))
    assert empty == {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 0.0}


NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.floats(-100, 100).map(lambda x: round(x, 2)))  # whole ones tie


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=60))
def test_correlations_as_scipy_has_them(pairs: list[tuple[float, float]]) -> None:
    p, y = (np.array(column) for column in zip(*pairs, strict=True))
    assert regression.mse(p, y) == pytest.approx(sklearn.metrics.mean_squared_error(y, p))
    assert regression.ranks(p).tolist() == scipy.stats.rankdata(p).tolist()
    if len(set(p)) == 1 or len(set(y)) == 1:
        assert regression.pearson(p, y) == regression.spearman(p, y) == 0.0
        return
    assert regression.pearson(p, y) == pytest.approx(scipy.stats.pearsonr(p, y).statistic, abs=1e-9)
    assert regression.spearman(p, y) == pytest.approx(scipy.stats.spearmanr(p, y).statistic, abs=1e-9)


def test_correlations_by_hand() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 100.0]
    assert regression.spearman(x, y) == pytest.approx(1.0)
    # deviations (-1.5, -.5, .5, 1.5) and (-25.5, -24.5, -23.5, 73.5): 149 / sqrt(5 * 7205)
    assert regression.pearson(x, y) == pytest.approx(149 / math.sqrt(5 * 7205))
    assert regression.pearson(x, [-v for v in x]) == pytest.approx(-1.0)
    assert regression.ranks([10, 20, 10, 5]).tolist() == [2.5, 4, 2.5, 1]
    # ranks (1, 2, 3, 4) and (1.5, 1.5, 3, 4): deviations (-1, -1, .5, 1.5): 4.5 / sqrt(5 * 4.5)
    assert regression.spearman(x, [7, 7, 8, 9]) == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert regression.mse([1, 2], [3, 2]) == 2.0
    assert regression.pearson([1.0, 1.0 + 2**-52], [3, 4]) == pytest.approx(1.0)
    assert regression.pearson([0.0, 5e-324], [3, 4]) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_correlations_at_any_scale(scale: float) -> None:
    x, y = np.array([1.0, 2.0, 4.0, 3.0]), np.array([1.0, 2.0, 3.0, 5.0])
    assert regression.pearson(x * scale, y) == pytest.approx(regression.pearson(x, y))
    assert regression.spearman(x * scale, y) == pytest.approx(regression.spearman(x, y))


def test_undefined_correlations_are_zero_and_silent() -> None:
    for bad in ([0.1] * 3, [math.nan, 1, 2], [math.inf, 1, 2]):
        assert regression.pearson(bad, [1, 2, 3]) == regression.spearman(bad, [1, 2, 3]) == 0.0
        assert regression.pearson([1, 2, 3], bad) == regression.spearman([1, 2, 3], bad) == 0.0
    assert regression.pearson([], []) == regression.spearman([], []) == regression.mse([], []) == 0.0
    assert regression.pearson([1], [2]) == 0.0
    assert math.isnan(regression.mse([math.nan], [0])) and math.isinf(regression.mse([1e200], [0]))


SCHEMES = ("iob1", "iob2", "bioes", "bilou")


def write(spans: list[tuple[str, int, int]], length: int, scheme: str) -> list[str]:
    """Chunks in order as tags, by the definition of each scheme."""
    tags = ["O"] * length
    for i, (name, start, end) in enumerate(spans):
        tags[start:end] = [f"I-{name}"] * (end - start)
        touches = i > 0 and spans[i - 1][2] == start and spans[i - 1][0] == name
        if scheme != "iob1" or touches:
            tags[start] = f"B-{name}"
        if scheme in ("bioes", "bilou"):
            tags[end - 1] = f"{'E' if scheme == 'bioes' else 'L'}-{name}"
            if end == start + 1:
                tags[start] = f"{'S' if scheme == 'bioes' else 'U'}-{name}"
    return tags


@st.composite
def chunked(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int]:
    spans, place = [], 0
    for _ in range(draw(st.integers(0, 6))):
        start = place + draw(st.integers(0, 2))
        place = start + draw(st.integers(1, 3))
        spans.append((draw(st.sampled_from(["NP", "VP", "B-X"])), start, place))
    return spans, place + draw(st.integers(0, 2))


@given(chunked(), st.sampled_from(SCHEMES))
def test_every_scheme_is_read_back(sentence: tuple[list[tuple[str, int, int]], int], scheme: str) -> None:
    spans, length = sentence
    assert chunks(write(spans, length, scheme)) == set(spans)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("I-NP I-NP B-NP O I-VP", {("NP", 0, 2), ("NP", 2, 3), ("VP", 4, 5)}),  # IOB1
        ("B-NP I-NP B-NP O B-VP", {("NP", 0, 2), ("NP", 2, 3), ("VP", 4, 5)}),  # IOB2
        ("B-NP E-NP S-NP O S-VP", {("NP", 0, 2), ("NP", 2, 3), ("VP", 4, 5)}),  # BIOES
        ("B-NP I-VP", {("NP", 0, 1), ("VP", 1, 2)}),  # a type may change without a B
        ("E-NP E-NP", {("NP", 0, 1), ("NP", 1, 2)}),
        ("S-NP I-NP", {("NP", 0, 1), ("NP", 1, 2)}),
        ("B-NP O E-NP", {("NP", 0, 1), ("NP", 2, 3)}),
        ("B-NP", {("NP", 0, 1)}),
        ("B I O B", {("", 0, 2), ("", 3, 4)}),  # one nameless type
        ("PER PER O LOC", {("PER", 0, 2), ("LOC", 3, 4)}),  # bare types
    ],
)
def test_chunks_by_hand(tags: str, expected: set[tuple[str, int, int]]) -> None:
    assert chunks(tags.split()) == expected


def test_chunk_scores_by_hand() -> None:
    gold = ["B-NP I-NP O B-VP".split(), "B-NP O".split()]
    predicted = ["B-NP I-NP O B-NP".split(), "B-NP I-NP".split()]
    # 3 predicted, 3 real; only the first chunk is exact (the second has the wrong type, the third a word too many)
    scores = chunk_scores(predicted, gold)
    third = pytest.approx(1 / 3)
    assert (scores.micro.precision, scores.micro.recall, scores.micro.f1) == (third, third, third)
    assert list(scores.by_type) == ["NP", "VP"]
    noun = scores.by_type["NP"]
    assert (noun.precision, noun.recall, noun.f1) == (third, 0.5, pytest.approx(0.4))
    assert (noun.predicted, noun.support) == (3, 2)
    assert scores.by_type["VP"] == classification.ClassScore(precision=0.0, recall=0.0, f1=0.0, predicted=0, support=1)
    assert tag_accuracy(predicted, gold) == pytest.approx(4 / 6)
    assert chunk_scores([], []).micro.f1 == chunk_scores([["O"]], [["O"]]).micro.f1 == tag_accuracy([], []) == 0.0
    with pytest.raises(ValueError, match="1 sentences predicted, 2 labelled"):
        chunk_scores([["O"]], gold)
    with pytest.raises(ValueError, match="sentence 0: 1 tags predicted, 4 labelled"):
        chunk_scores([["O"], ["O", "O"]], gold)


@given(st.lists(st.tuples(chunked(), chunked()), max_size=4))
def test_chunk_scores_are_set_scores(
    pairs: list[tuple[tuple[list[tuple[str, int, int]], int], tuple[list[tuple[str, int, int]], int]]],
) -> None:
    gold, predicted, right = [], [], 0
    for (a, n), (b, m) in pairs:
        predicted.append(write(a, max(n, m), "bioes"))
        gold.append(write(b, max(n, m), "iob1"))
        right += len(set(a) & set(b))
    found = chunk_scores(predicted, gold)
    every = [found.micro, *found.by_type.values()]
    whole, *parts = (score.precision * score.predicted for score in every)
    assert whole == pytest.approx(right) and sum(parts) == pytest.approx(right)
    assert all(score.recall * score.support == pytest.approx(score.precision * score.predicted) for score in every)
    precision, recall = found.micro.precision, found.micro.recall
    assert found.micro.f1 == pytest.approx(2 * precision * recall / (precision + recall) if right else 0.0)


def test_summary_by_hand() -> None:
    assert summarise([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == Summary(
        n=8, median=4.5, mean=5.0, std=pytest.approx(math.sqrt(32 / 7)), min=2.0, max=9.0
    )
    assert summarise([3.0]) == Summary(n=1, median=3.0, mean=3.0, std=0.0, min=3.0, max=3.0)
    assert summarise(iter([1, 2])).std == pytest.approx(math.sqrt(0.5))
    assert math.isnan(summarise([1.0, math.nan]).median)
    with pytest.raises(ValueError, match="no score"):
        summarise([])


@pytest.mark.parametrize(
    ("scores", "place"),
    [
        ([7.0], 0),
        ([30.0, 10.0, 20.0], 2),
        ([30.0, 10.0], 1),
        ([5.0, 5.0, 5.0, 5.0], 1),
        ([None, 70.0, 60.0], 2),
        ([math.nan, math.inf, 60.0], 1),
        ([None, None], 0),
    ],
)
def test_the_place_of_the_median(scores: list[float | None], place: int) -> None:
    assert median_place(scores) == place


@given(st.integers(1, 3000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_interval_of_a_share_is_scipys(rows: tuple[int, int]) -> None:
    truth = scipy.stats.binomtest(*rows).proportion_ci(0.95, method="wilson")
    assert share_interval(*rows) == pytest.approx((truth.low, truth.high), abs=1e-12)


@pytest.mark.parametrize("rows", [(0, 0), (3, 2), (-1, 5)])
def test_no_share_has_no_interval(rows: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="rows is no share"):
        share_interval(*rows)
