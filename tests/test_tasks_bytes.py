"""Tasks with tokens that are bytes: answers are exact slices, every word keeps its tag, samples stay readable."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import script_words
from hypothesis import given
from hypothesis import strategies as st

from electra.report.reading import Sample
from electra.report.tokens import guesses, page_tokens
from electra.tasks.features import encode_words, join_words
from electra.tasks.rows import Question, Sentence
from electra.tasks.spans import SpanScores, decode
from electra.tasks.windows import cut_windows, encode_context
from electra.tokenizer.backends import Kind
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.train import train

OWN: tuple[Kind, ...] = ("wordpiece", "bytes")


@cache
def tokenizer(kind: Kind) -> Tokenizer:
    """So few entries that most characters of Thai and Chinese are several byte-level tokens."""
    text = [line for language in ("german", "thai", "chinese", "hindi") for line in script_words.lines(language, 30)]
    assert kind != "bert"
    return train(text, vocab_size=400, kind=kind)


CONTEXT = "Die größere Straße, 北京 und ที่นี่. हिन्दी भाषा 12345!"


def answered(kind: Kind, context: str, start: int, end: int) -> str:
    """The answer that a head gives which is sure of the targets."""
    question = Question(id="q", question="wo?", context=context, answers=((context[start:end], start),))
    windows = cut_windows([question], tokenizer=tokenizer(kind), length=400, max_question=20, targets=True)
    assert len(windows) == 1 and windows.features.targets is not None
    first, last, _ = np.asarray(windows.features.targets)[0].tolist()
    scores = SpanScores(
        starts_NK=np.zeros((1, 1)),
        start_at_NK=np.array([[first]]),
        ends_NKK=np.zeros((1, 1, 1)),
        end_at_NKK=np.array([[[last]]]),
        impossible_N=np.zeros(1),
    )
    return decode(scores, windows=windows, questions=[question], max_answer=300)[0].text


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("answer", ["größere", "Straße", "北京", "ที่นี่", "हिन्दी भाषा", "12345", "größere Straße, 北京"])
def test_answers_come_back_exactly(kind: Kind, answer: str) -> None:
    start = CONTEXT.index(answer)
    assert answered(kind, CONTEXT, start, start + len(answer)) == answer


@given(st.integers(0, len(CONTEXT) - 1), st.integers(1, 20), st.sampled_from(OWN))
def test_the_answer_lies_within_what_is_given(start: int, length: int, kind: Kind) -> None:
    end = min(len(CONTEXT), start + length)
    wanted = CONTEXT[start:end].strip()
    if wanted:
        start += CONTEXT[start:end].index(wanted)
        assert wanted in answered(kind, CONTEXT, start, start + len(wanted))


@pytest.mark.parametrize("kind", OWN)
def test_spans_of_a_context_rise(kind: Kind) -> None:
    _, spans = encode_context(CONTEXT, tokenizer=tokenizer(kind))
    assert (np.diff(spans, axis=0) >= 0).all()


def test_one_character_can_be_several_tokens() -> None:
    ids, spans = encode_context("京", tokenizer=tokenizer("bytes"))
    assert len(ids) > 1 and set(map(tuple, spans.tolist())) == {(0, 1)}


@pytest.mark.parametrize("kind", OWN)
def test_every_word_keeps_its_tag(kind: Kind) -> None:
    sentences = [("Die", "größere", "Straße", "!"), ("北京", "很好", "Python"), ("ที่นี่", "ไทย"), ("एक",)]
    labels = ["O", "A", "B", "C"]
    rows = [Sentence(id="", words=words, tags=tuple(labels[: len(words)])) for words in sentences]
    for length in (200, 12):
        features, windows = encode_words(rows, tokenizer=tokenizer(kind), labels=labels, length=length)
        assert isinstance(features.targets, list)
        assert join_words(windows, features.targets, count=4) == [list(range(len(words))) for words in sentences]
    features, _ = encode_words(rows, tokenizer=tokenizer(kind), labels=labels, length=200)
    running = "Die größere Straße !"  # as in running text
    assert features.ids[0][1:-1] == tokenizer(kind).encode(running)
    assert features.ids[1][1:-1] == tokenizer(kind).encode("北京很好Python")


def test_a_sample_on_the_page() -> None:
    original = ["[CLS]", "The", " ri", "ver", " 東", "京", " ", "[SEP]"]
    masked = [*original[:2], "[MASK]", *original[3:]]
    replaced = [*original[:2], " mo", *original[3:]]
    sample = Sample(step=1, original=original, masked=masked, replaced=replaced, probabilities=[0.0] * 8, spaced=True)
    shown = page_tokens(sample)
    assert [token.text for token in shown] == ["", "The", "mo", "ver", "東", "京", "␣", "¶"]
    assert "".join(token.text if token.glued else " " + token.text for token in shown[1:6]) == "The mover 東京"
    assert shown[2].before == "ri" and shown[2].changed
    assert [token.glued for token in page_tokens(sample, masked)][1:4] == [True, False, True]
    assert guesses([sample])[0].original == "ri"
