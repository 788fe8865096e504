"""Pairs from tables: columns, hold-out, texts and numbers, and what is measured on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import VOCAB
from task_files import sentence
from tiny_tuning import PLAIN

from electra.errors import ConfigError, DataError
from electra.tasks.columns import Columns, find_columns
from electra.tasks.named_tasks import load_task
from electra.tasks.pairs import GRADED, RETRIEVAL, encode_pairs, pair_split
from electra.tasks.rows import Example
from electra.tasks.task_data import EvalSplit, TaskData
from electra.tokenizer.codec import Tokenizer

TOKENIZER = Tokenizer(VOCAB)


def table(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def load(path: Path, **columns: Any) -> TaskData:
    return load_task(
        "pairs", {"train": path}, columns=Columns(**columns), tokenizer=TOKENIZER, config=replace(PLAIN, hold_out=0.25)
    )


def split(rows: list[tuple[str, str]], scores: list[float] | None = None) -> EvalSplit:
    labels: list[float | None] = [None] * len(rows) if scores is None else list(scores)
    examples = [
        Example(id=str(number), text=one, pair=two, label=label)
        for number, ((one, two), label) in enumerate(zip(rows, labels, strict=True))
    ]
    return pair_split(examples, tokenizer=TOKENIZER, length=24, where="rows")


def evaluate(found: EvalSplit, vectors: Any) -> Any:
    assert found.evaluate is not None and found.details is not None
    outputs = {"vectors": np.asarray(vectors, np.float32)}
    return found.evaluate(outputs), found.details(outputs), found.decode(outputs)


@pytest.mark.parametrize(
    ("header", "named", "wanted"),
    [
        ("text,pair", {}, ("text", "pair")),
        ("id,sentence1,sentence2", {}, ("sentence1", "sentence2")),
        ("question,answer", {}, ("question", "answer")),
        ("ask,reply", {}, ("ask", "reply")),
        ("ask,reply", {"text": "reply"}, ("reply", "ask")),
        ("ask,reply", {"text": "reply", "pair": "ask"}, ("reply", "ask")),
        ("ask,reply,bad", {}, ("text", "pair")),
        ("ask,reply,bad", {"negative": "bad"}, ("ask", "reply")),
        ("ask,reply,bad", {"text": "bad"}, ("bad", "pair")),
    ],
)
def test_columns_are_found_where_they_are_obvious(
    header: str, named: dict[str, str], wanted: tuple[str, str], tmp_path: Path
) -> None:
    row = ",".join("7" if name == "id" else "the dog sat on it" for name in header.split(","))
    found = find_columns(table(tmp_path / "t.csv", header, [row]), Columns(**named), kind="pairs")
    assert (found.text, found.pair) == wanted and found.label is None


def test_a_table_is_split_by_first_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{sentence(number // 3)},{sentence((number, 2))},0.5" for number in range(36)]
    data = load(table(tmp_path / "t.csv", "text,pair,score", rows))
    assert data.task.kind == "pairs" and data.task.metrics == RETRIEVAL and data.held_out
    assert data.rows == {"train": 27, "dev": 9} and data.train.count == 27 and len(data.train.ids) == 54
    first, dev = ({tuple(ids) for ids in one.ids[::2]} for one in (data.train, data.eval_splits["dev"].features))
    assert len(dev) == 3 and not first & dev, "every second text of a first one is right: it stays on one side"
    assert data.columns == Columns(text="text", pair="pair")
    said = capsys.readouterr().err
    assert "if column 'score' grades them, give --score score" in said and "27 rows to train on, 9 held out" in said


def test_scores_and_hard_negatives(tmp_path: Path) -> None:
    rows = [f"{sentence(number)},{sentence((number, 2))},{number % 5},{sentence((number, 3))}" for number in range(40)]
    path = table(tmp_path / "t.csv", "text,pair,score,bad", rows)
    graded = load(path, label="score")
    assert graded.task.metrics == GRADED and np.asarray(graded.train.targets).dtype == np.float32
    dev = np.asarray(graded.eval_splits["dev"].features.targets)[::2]
    assert sorted(dev.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], "each fifth of the scores gives its share"
    hard = load(path, negative="bad")
    assert hard.train.group == 3 and len(hard.train.ids) == 90 and hard.eval_splits["dev"].features.group == 2
    with pytest.raises(ConfigError, match="--negative.*leave out --negative or --score"):
        load(path, negative="bad", label="score")
    with pytest.raises(ConfigError, match="only pairs have"):
        load_task("classify", {"train": path}, columns=Columns(negative="x"), tokenizer=TOKENIZER, config=PLAIN)
    with pytest.raises(DataError, match="'pair' holds .*, not a number"):
        load(path, text="text", pair="bad", label="pair")
    alike = table(
        tmp_path / "alike.csv", "text,pair,score", [f"{sentence(at)},{sentence((at, 2))},3" for at in range(9)]
    )
    with pytest.raises(
        DataError, match="alike.csv: column 'score' has one number only: 3 .scores must differ.*--score"
    ):
        load(alike, label="score")
    assert load(alike).task.metrics == RETRIEVAL, "as pairs that are all right, they can be learned"
    with pytest.raises(ConfigError, match="batch_size.*at least 2"):
        one = replace(PLAIN, batch_size=1)
        load_task("pairs", {"train": path}, columns=Columns(), tokenizer=TOKENIZER, config=one)
    with pytest.raises(DataError, match="one second text only"):
        load(table(tmp_path / "same.csv", "text,pair", [f"{sentence(number)},the dog" for number in range(20)]))


def test_equal_texts_have_equal_numbers() -> None:
    rows = [("the dog", "a cat", "the mat"), ("The  DOG", "the meal", ""), ("a cat", "the dog", "a cat")]
    examples = [Example(id="0", text=one, pair=two, negative=three) for one, two, three in rows]
    found = encode_pairs(examples, tokenizer=TOKENIZER, length=24)
    assert np.asarray(found.targets).tolist() == [0, 1, 2, 0, 3, -1, 1, 0, 1], (
        "what the network reads, not the spelling"
    )
    assert found.group == 3 and found.count == 3 and np.asarray(found.rows).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for ids, text in zip(found.ids, [text for row in rows for text in row], strict=True):
        assert ids == [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
    assert encode_pairs(examples[:1], tokenizer=TOKENIZER, length=5).cut == 0
    long = [Example(id="0", text="the dog sat on the mat", pair="a")]
    cut = encode_pairs(long, tokenizer=TOKENIZER, length=5)
    assert cut.cut == 1 and [len(ids) for ids in cut.ids] == [5, 3]


def test_retrieval_counts_every_right_text_once() -> None:
    """The second texts are those of four rows, one of them twice; the first text of rows 0 and 1 has two right ones."""
    rows = [("the dog", "a cat"), ("the dog", "the mat"), ("a meal", "a cat"), ("we saw", "the dog")]
    found = split(rows)
    dog, cat, mat, meal, saw = np.eye(5)
    vectors = [dog + 0.1 * cat, cat, dog + 0.1 * cat, mat, meal + cat, cat, saw + mat, dog]
    evaluation, details, predicted = evaluate(found, vectors)
    # Rows 0 and 1: beside the right one there is only `the dog`, which is the text itself, so nothing is wrong.
    # Row 2: `a cat` has cosine 0.7, the others 0. Row 3: `the mat` is nearer (0.7) than `the dog` (0, as the cat).
    assert evaluation.scores == pytest.approx({"mrr": 100 * (3 + 1 / 3) / 4, "recall@1": 75.0, "recall@10": 100.0})
    assert details.rows == 4 and details.wrong == 1 and not evaluation.stuck
    assert [(one.id, one.text, one.label, one.prediction) for one in details.errors] == [
        ("3", "we saw", "the dog", "the mat")
    ]
    assert predicted["2"] == pytest.approx(2**-0.5) and predicted["3"] == pytest.approx(0.0)
    assert evaluate(found, np.ones((8, 5)))[0].stuck


def test_graded_pairs_are_correlated_as_scipy_does() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    scores = [0.0, 1.0, 1.0, 2.5, 3.0, 4.0, 5.0, 5.0]
    found = split([(sentence(number), sentence((number, 2))) for number in range(8)], scores)
    vectors = random.normal(size=(16, 6))
    evaluation, details, predicted = evaluate(found, vectors)
    one, other = vectors[::2], vectors[1::2]
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    np.testing.assert_allclose(list(predicted.values()), cosines, atol=1e-6)
    wanted = {
        "spearman": 100 * stats.spearmanr(cosines, scores)[0],
        "pearson": 100 * stats.pearsonr(cosines, scores)[0],
    }
    assert evaluation.scores == pytest.approx(wanted, abs=1e-4)
    apart = np.abs(stats.rankdata(cosines) - stats.rankdata(scores))
    assert [one.id for one in details.errors] == [str(at) for at in np.argsort(-apart, kind="stable")]
    assert details.wrong == 0 and details.errors[0].pair is not None
