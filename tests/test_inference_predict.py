"""Predictions: in the rows' order, as the network alone would say, at exact places of the text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_folders import SIZE, VOCAB, WORDS
from tuned_folders import make_tuned

from electra.batches.sequences import unpack
from electra.errors import ConfigError, DataError
from electra.finetune.model_folder import FinetunedModel
from electra.inference import predict as predicting
from electra.inference.predict import (
    on_device,
    predict,
    predict_rows,
    sigmoid,
    softmax,
)
from electra.tasks.rows import Example, Kind, Question, Sentence
from electra.tokenizer.codec import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
LONG = " ".join(WORDS * 4)


def model(kind: Kind, **changes: Any) -> FinetunedModel:
    tuned, about = make_tuned(kind, **changes)
    return FinetunedModel(network=tuned, tokenizer=TOKENIZER, config=SIZE, about=about, path=Path("model"))


def alone(loaded: FinetunedModel, ids: list[int], first: int) -> dict[str, Any]:
    row = torch.tensor([[*ids, len(ids), first, 0]], dtype=torch.int32)
    with torch.no_grad():
        return {name: value[0] for name, value in loaded.network.predict(unpack(row)).items()}


def framed(text: str) -> list[int]:
    return [TOKENIZER.cls_id, *TOKENIZER.encode(text)[:22], TOKENIZER.sep_id]


def test_classes_come_with_all_probabilities_in_the_order_of_the_rows() -> None:
    loaded = model("classify", seed=4)
    texts = ["the dog sat", LONG, "", "a", "we saw the chef and the cat", "money!"]
    predicted = predict(loaded, texts, batch_size=2)
    assert [one["id"] for one in predicted] == ["0", "1", "2", "3", "4", "5"]
    for text, one in zip(texts, predicted, strict=True):
        ids = framed(text)
        chances = alone(loaded, ids, len(ids))["scores"].softmax(0).tolist()
        assert list(one["probabilities"].values()) == pytest.approx(chances, abs=1e-5)
        assert one["label"] == loaded.about.labels[int(np.argmax(chances))]
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-12)
    assert len({one["label"] for one in predicted}) > 1, "a test of one answer would show little"


def test_several_labels_are_those_more_likely_than_not() -> None:
    loaded = model("multilabel")
    for text, one in zip(WORDS, predict(loaded, WORDS), strict=True):
        ids = framed(text)
        chances = alone(loaded, ids, len(ids))["scores"].sigmoid().tolist()
        assert list(one["probabilities"].values()) == pytest.approx(chances, abs=1e-5)
        assert one["labels"] == [name for name, chance in one["probabilities"].items() if chance > 0.5]


def test_values_are_in_the_unit_of_the_labels() -> None:
    loaded = model("regress", pairs=True)
    [one] = predict(loaded, [("the dog", "a cat")])
    ids = [*framed("the dog"), *TOKENIZER.encode("a cat"), TOKENIZER.sep_id]
    assert one["value"] == pytest.approx(float(alone(loaded, ids, 4)["scores"][0]), abs=1e-4)


def test_a_model_of_pairs_is_not_asked_about_one_text() -> None:
    with pytest.raises(DataError, match="row 2: is one text"):
        predict(model("classify", pairs=True), [("a", "b"), "c"])


def test_rows_keep_their_ids_and_their_labels_are_not_looked_at() -> None:
    rows = [Example(id="x", text="a dog", label="unheard of"), Example(id="y", text="a cat")]
    assert [one["id"] for one in predict(model("classify"), rows)] == ["x", "y"]


@given(
    st.lists(
        st.lists(st.sampled_from([*WORDS, "Zoo", "U.S.", "\N{SNOWMAN}", "\N{ZERO WIDTH SPACE}"]), max_size=40),
        max_size=5,
    )
)
def test_every_word_gets_one_tag(sentences: list[list[str]]) -> None:
    loaded = model("tag")
    predicted = predict(loaded, sentences, batch_size=3)
    assert [one["words"] for one in predicted] == sentences
    for one in predicted:
        assert len(one["tags"]) == len(one["probabilities"]) == len(one["words"])
        assert set(one["tags"]) <= set(loaded.about.labels)
        assert all(0.2 <= chance <= 1 for chance in one["probabilities"])  # the best of five


def test_tags_are_those_of_first_pieces() -> None:
    loaded = model("tag")
    [one] = predict(loaded, ["the zoo sat"])
    ids = framed("the zoo sat")
    chances = alone(loaded, ids, len(ids))["scores"].softmax(1)
    places = [1, 2, 5]  # z ##o ##o in between
    assert one["tags"] == [loaded.about.labels[int(chances[place].argmax())] for place in places]
    assert one["probabilities"] == pytest.approx([float(chances[place].max()) for place in places], abs=1e-5)


def best_by_hand(loaded: FinetunedModel, question: str, context: str) -> tuple[float, int, int]:
    """The best allowed span of a context that fits one window, by trying all of them."""
    asked = TOKENIZER.encode(question)[: loaded.about.max_query]
    ids, offsets = TOKENIZER.encode_with_offsets(context)
    first = len(asked) + 2
    row = [TOKENIZER.cls_id, *asked, TOKENIZER.sep_id, *ids, TOKENIZER.sep_id]
    assert len(row) <= loaded.about.length
    batch = unpack(torch.tensor([[*row, len(row), first, 0]], dtype=torch.int32))
    with torch.no_grad():
        predicted = loaded.network.predict(batch, beam=len(row))
    ends = {
        (int(start), int(end)): float(a + b)
        for start, a, row_at, row_ends in zip(
            predicted["start_at"][0], predicted["starts"][0], predicted["end_at"][0], predicted["ends"][0], strict=True
        )
        for end, b in zip(row_at, row_ends, strict=True)
    }
    allowed = [
        (score, offsets[start - first][0], offsets[end - first][1])
        for (start, end), score in ends.items()
        if first <= start <= end < first + len(ids) and end - start < loaded.about.max_answer
    ]
    return max(allowed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_answers_are_the_best_spans_and_exact_slices(seed: int) -> None:
    loaded = model("span", seed=seed, beam=24, max_answer=4)
    asked = [("we saw the dog?", "The  CHEF cooked,\ta meal."), ("a", "Caf\N{LATIN SMALL LETTER E WITH ACUTE} cat")]
    for (question, context), one in zip(asked, predict(loaded, asked), strict=True):
        score, start, end = best_by_hand(loaded, question, context)
        assert (one["start"], one["end"]) == (start, end) and one["score"] == pytest.approx(score, abs=1e-4)
        assert one["answer"] == context[start:end] != ""
        assert one["n_best"][0]["text"] == one["answer"]
        scores = [span["score"] for span in one["n_best"]]
        assert scores == sorted(scores, reverse=True) and len(scores) <= loaded.about.n_best
        assert all(span["text"] == context[span["start"] : span["end"]] for span in one["n_best"])


def test_long_passages_are_read_whole() -> None:
    loaded = model("span")
    [one] = predict(loaded, [("we saw the dog", LONG)])
    assert one["answer"] == LONG[one["start"] : one["end"]] and math.isfinite(one["null_odds"])
    ends = {span["end"] for span in one["n_best"]}
    assert max(ends) > len(LONG) // 2 > min(ends), "spans come from several windows"


def test_no_answer_above_the_threshold_of_a_model_that_learned_to_refuse() -> None:
    loaded = model("span")
    asked = [Question(id="q7", question="a dog", context="the cat sat")]
    [always] = predict(loaded, asked)
    odds = always["null_odds"]
    for threshold, answered in ((odds - 0.1, False), (odds + 0.1, True), (odds, True)):
        careful = replace(loaded, about=replace(loaded.about, null_threshold=threshold))
        [one] = predict(careful, asked)
        assert one["id"] == "q7" and one["null_odds"] == odds and one["n_best"] == always["n_best"]
        assert one["answer"] == (always["answer"] if answered else "")
        assert (one["start"] is not None) == (one["score"] is not None) == answered


def test_a_passage_without_a_token_has_no_answer() -> None:
    [one] = predict(model("span"), [("a dog", "")])
    assert one["answer"] == "" and one["start"] is None and one["n_best"] == []


@pytest.mark.parametrize("kind", ["classify", "tag", "span"])
def test_nothing_in_nothing_out(kind: Kind) -> None:
    assert list(predict_rows(model(kind), [])) == []


def test_the_wrong_kind_of_rows_is_named() -> None:
    with pytest.raises(ConfigError, match=r"TAG \(tag\) takes sentences of words, not texts"):
        predict(model("tag"), [Example(id="0", text="a dog")])
    with pytest.raises(ConfigError, match=r"CLASSIFY \(classify\) takes texts, not questions"):
        predict(model("classify"), [Question(id="0", question="a", context="b")])
    with pytest.raises(DataError, match="row 2: needs a question and its passage, not 1 text"):
        predict(model("span"), [("a dog", "a cat"), "a dog"])
    with pytest.raises(DataError, match="row 1: needs one text or two, not 3"):
        predict(model("classify"), [("a", "b", "c")])
    with pytest.raises(ConfigError, match="batch size"):
        predict(model("classify"), ["a"], batch_size=0)


def test_many_rows_have_a_bar_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predicting, "_CHUNK_ROWS", 7)
    loaded = model("tag")
    rows = [Sentence(id=str(number), words=(WORDS[number % 16],) * (number % 5)) for number in range(1000)]
    predicted = list(predict_rows(loaded, rows, batch_size=4))
    assert [one["id"] for one in predicted] == [row.id for row in rows]
    assert all(tuple(one["words"]) == row.words for one, row in zip(predicted, rows, strict=True))
    assert "predicting TAG: done: 1,000 rows" in capsys.readouterr().err


def test_without_a_gpu_the_model_stays_as_it_is() -> None:
    loaded = model("classify")
    assert on_device(loaded, "cpu") is loaded


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["classify", "tag", "span"])
def test_a_gpu_says_nearly_the_same(kind: Kind) -> None:
    loaded = model(kind)
    moved = on_device(loaded)
    assert next(moved.network.parameters()).device.type == "cuda" and loaded.network.head is not moved.network.head
    assert all(parameter.dtype == torch.float32 for parameter in loaded.network.parameters())
    if kind == "classify":
        for ours, theirs in zip(predict(loaded, WORDS), predict(moved, WORDS), strict=True):
            assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=0.05)
    elif kind == "tag":
        [ours], [theirs] = predict(loaded, [LONG]), predict(moved, [LONG])
        assert np.mean([a == b for a, b in zip(ours["tags"], theirs["tags"], strict=True)]) > 0.9
    else:
        [one] = predict(moved, [("a dog", LONG)])
        assert one["answer"] == LONG[one["start"] : one["end"]]


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=6))
def test_probabilities_are_torchs(scores: list[float]) -> None:
    given_ = torch.tensor(scores, dtype=torch.float64)
    np.testing.assert_allclose(softmax(np.array(scores)), given_.softmax(0).numpy(), atol=1e-12)
    np.testing.assert_allclose(sigmoid(np.array(scores)), given_.sigmoid().numpy(), atol=1e-12)
