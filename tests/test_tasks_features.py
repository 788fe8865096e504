"""Ids, segments and targets, against `transformers` and against rules applied one token at a time."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import ConfigError, DataError
from electra.tasks.features import NO_TAG, encode_sequences, encode_words, join_words, pair_lengths, swapped
from electra.tasks.glue_files import read_glue
from electra.tasks.glue_tasks import TASKS
from electra.tasks.rows import Example, Features, Sentence
from electra.tokenizer.backends import SPECIALS
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.vocabulary import read_vocab

LETTERS = "abcdefghij"
WORDS = ["the", "cat", "sat", "un", "##able", "##s", "mat", "café", ",", ".", "!"]
VOCAB = [*SPECIALS, *LETTERS, *[f"##{letter}" for letter in LETTERS], *WORDS]
TOKENIZER = Tokenizer(VOCAB)


def encode(examples: list[Example], *, length: int = 16, **options: object) -> Features:
    return encode_sequences(examples, tokenizer=TOKENIZER, task_kind="classify", length=length, **options)  # type: ignore[arg-type]


def tokens(ids: list[int]) -> str:
    return " ".join(TOKENIZER.token(number) for number in ids)


def segments(features: Features) -> list[list[int]]:
    return [[0] * a + [1] * (len(ids) - a) for ids, a in zip(features.ids, features.a_lengths, strict=True)]


def pop_from_the_longer(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(0, 60), st.integers(0, 60), st.integers(2, 40))
def test_pairs_lose_tokens_from_the_longer_text(first: int, second: int, room: int) -> None:
    assert pair_lengths(first, second, limit=room) == pop_from_the_longer(first, second, room)


def test_singles_and_pairs_by_hand() -> None:
    rows = [
        Example(id="0", text="the cats sat .", pair="unable [SEP]", label="1"),
        Example(id="1", text="The cat!", label="0"),
        Example(id="2", text="", pair="", label="0"),
    ]
    features = encode(rows, labels=("0", "1"), length=32)
    assert tokens(features.ids[0]) == "[CLS] the cat ##s sat . [SEP] un ##able [UNK] [UNK] [UNK] [SEP]"
    assert tokens(features.ids[1]) == "[CLS] the cat ! [SEP]"
    assert tokens(features.ids[2]) == "[CLS] [SEP] [SEP]"
    assert features.a_lengths == [7, 5, 2]
    assert isinstance(features.targets, np.ndarray) and features.targets.dtype == np.int64
    assert features.targets.tolist() == [1, 0, 0]


def test_the_published_tokenizer_gives_the_same_pairs(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    TOKENIZER.save(tmp_path)
    theirs = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    texts = ["The cat sat, unable!", "a", "", "Café cats ," * 4, "the mat " * 9]
    rows = [Example(id="", text=a, pair=b) for a in texts for b in texts]
    compare(rows, TOKENIZER, theirs, lengths=(9, 15, 65))
    compare([Example(id="", text=a) for a in texts], TOKENIZER, theirs, lengths=(5, 8, 65))


def compare(rows: list[Example], ours: Tokenizer, theirs: object, *, lengths: tuple[int, ...]) -> None:
    """Odd lengths: where an odd number of tokens is left for two long texts, the two rules share it differently."""
    bare = [replace(row, label=None) for row in rows]
    pairs = [row.pair for row in rows] if rows[0].pair is not None else None
    for length in lengths:
        made = encode_sequences(bare, tokenizer=ours, task_kind="classify", length=length)
        expected = theirs([row.text for row in rows], pairs, truncation="longest_first", max_length=length)  # type: ignore[operator]
        assert made.ids == expected["input_ids"]
        assert segments(made) == expected["token_type_ids"]


@pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with glue/ and vocab/")
@pytest.mark.parametrize("name", ["cola", "mrpc", "rte"])
def test_real_rows_as_the_published_tokenizer_reads_them(name: str) -> None:
    from transformers import BertTokenizerFast

    data = Path(os.environ["ELECTRA_DATA"])
    vocab = data / "vocab" / "bert-uncased.txt"
    rows = read_glue(TASKS[name], data / "glue", "dev")
    compare(rows, Tokenizer(read_vocab(vocab)), BertTokenizerFast(str(vocab)), lengths=(33, 129))


def test_targets_of_every_kind() -> None:
    many = [Example(id="", text="a", label=("y", "x")), Example(id="", text="b", label=())]
    features = encode_sequences(many, tokenizer=TOKENIZER, task_kind="multilabel", labels=("x", "z", "y"), length=8)
    assert isinstance(features.targets, np.ndarray) and features.targets.dtype == np.float32
    assert features.targets.tolist() == [[1, 0, 1], [0, 0, 0]]
    scores = [Example(id="", text="a", label=5.0), Example(id="", text="b", label=0.5)]
    features = encode_sequences(scores, tokenizer=TOKENIZER, task_kind="regress", scale=5.0, length=8)
    assert isinstance(features.targets, np.ndarray) and features.targets.dtype == np.float32
    np.testing.assert_array_equal(features.targets, np.array([1.0, 0.1], np.float32))
    assert encode([Example(id="", text="a")]).targets is None
    assert encode([]) == Features(ids=[], a_lengths=[])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["no", "may"], r"dev.csv: row 2: label 'may' is not one of the task's \(known are no, yes\)"),
        (["no", None], "dev.csv: row 2 has no label, others have"),
        (["no", ("no", "yes")], "dev.csv: row 2 has 2 labels, not one"),
        ([1.0, 2.0], "dev.csv: row 1 has 0 labels, not one"),
    ],
)
def test_labels_that_do_not_fit(labels: list[str], message: str) -> None:
    rows = [Example(id="", text="a", label=label) for label in labels]
    with pytest.raises(DataError, match=message):
        encode(rows, labels=("no", "yes"), where="dev.csv")


def test_lengths_that_are_too_short() -> None:
    with pytest.raises(ConfigError, match="length: 4 tokens"):
        encode([], length=4)
    with pytest.raises(ConfigError, match="length: 2 tokens"):
        encode_words([], tokenizer=TOKENIZER, labels=(), length=2)


def test_swapped_pairs_follow_the_others() -> None:
    rows = [Example(id="0", text="a", pair="b", label="1"), Example(id="1", text="c", label="0")]
    assert swapped(rows) == [*rows, Example(id="0-swapped", text="b", pair="a", label="1")]
    pairs = rows[:1]
    assert [(one.text, one.pair) for one in swapped(swapped(pairs))[2:]] == [("b", "a"), ("a", "b")]


def test_first_pieces_carry_the_tags() -> None:
    sentence = Sentence(id="0", words=("The", "cats", "sat.", "\u200b", "unable"), tags=("O", "A", "B", "O", "A"))
    features, windows = encode_words([sentence], tokenizer=TOKENIZER, labels=("O", "A", "B"), length=16)
    assert tokens(features.ids[0]) == "[CLS] the cat ##s sat . [UNK] un ##able [SEP]"
    assert features.targets == [[-1, 0, 1, -1, 2, -1, 0, 1, -1, -1]]
    assert windows[0].positions == (1, 2, 4, 6, 7) and (windows[0].sentence, windows[0].first) == (0, 0)
    assert features.a_lengths == [10]
    plain, _ = encode_words([Sentence(id="0", words=("a",))], tokenizer=TOKENIZER, labels=("O",), length=16)
    assert plain.targets is None


def test_words_tokenized_alone_as_the_published_tokenizer_splits_them(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    TOKENIZER.save(tmp_path)
    theirs = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    words = ["The", "unable", "cat.sat", "Café", "mats"]
    features, windows = encode_words([Sentence(id="", words=tuple(words))], tokenizer=TOKENIZER, labels=(), length=64)
    expected = theirs([words], is_split_into_words=True)
    assert features.ids == expected["input_ids"]
    numbers = expected.word_ids(0)
    assert list(windows[0].positions) == [numbers.index(word) for word in range(len(words))]


SENTENCES = st.lists(st.lists(st.text(LETTERS, min_size=1, max_size=12), max_size=40), min_size=1, max_size=4)


@given(SENTENCES, st.integers(3, 20))
def test_every_word_is_answered_once_however_long_the_sentence(sentences: list[list[str]], length: int) -> None:
    """Each word its own tag, so that what comes back says which word was asked about."""
    labels = [str(number) for number in range(40)]
    rows = [Sentence(id="", words=tuple(words), tags=tuple(labels[: len(words)])) for words in sentences]
    features, windows = encode_words(rows, tokenizer=TOKENIZER, labels=labels, length=length)
    assert isinstance(features.targets, list)
    assert max(map(len, features.ids)) <= length
    assert [len(one) for one in features.targets] == [len(one) for one in features.ids]
    answered = join_words(windows, features.targets, count=len(rows))
    assert answered == [list(range(len(words))) for words in sentences]
    carried = [sum(target != NO_TAG for target in one) for one in features.targets]
    assert carried == [len(window.positions) for window in windows]
    for ids, window in zip(features.ids, windows, strict=True):
        for place, position in enumerate(window.positions):
            word = rows[window.sentence].words[window.first + place]
            pieces = TOKENIZER.encode(word)[: length - 2]
            assert ids[position : position + len(pieces)] == pieces


def test_neighbouring_windows_share_words_for_context(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = Sentence(id="0", words=tuple("abcdefghij" * 2), tags=("O",) * 20)
    features, windows = encode_words([sentence], tokenizer=TOKENIZER, labels=("O",), length=14, where="dev.txt")
    assert [len(ids) for ids in features.ids] == [14, 13]
    assert tokens(features.ids[1][:5]) == "[CLS] j a b c"  # three of twelve again
    assert [(window.first, len(window.positions)) for window in windows] == [(0, 11), (11, 9)]
    assert "dev.txt: 1 of 1 sentences are longer than 14 tokens" in capsys.readouterr().err


def test_tags_that_do_not_fit() -> None:
    rows = [Sentence(id="0", words=("a", "b"), tags=("O", "X"))]
    with pytest.raises(DataError, match="dev.txt: sentence 1, word 2: label 'X' is not one"):
        encode_words(rows, tokenizer=TOKENIZER, labels=("O",), length=8, where="dev.txt")
    with pytest.raises(DataError, match="sentence 1 has 1 words and 2 tags"):
        encode_words([Sentence(id="0", words=("a",), tags=("O", "O"))], tokenizer=TOKENIZER, labels=("O",), length=8)
    with pytest.raises(DataError, match="row 2 has no tags"):
        encode_words([*rows, Sentence(id="1", words=("a",))], tokenizer=TOKENIZER, labels=("O", "X"), length=8)


def test_a_very_long_text_is_cut_and_many_rows_show_progress(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Example(id="", text="the cat " * 25_000, pair="a b")] + [Example(id="", text="a")] * 50_000
    features = encode(rows, length=32, where="train.tsv")
    assert len(features.ids[0]) == 32 and tokens(features.ids[0][-4:]) == "[SEP] a b [SEP]"
    assert len(features.ids) == 50_001 and features.a_lengths[-1] == 3
    assert "tokenizing train.tsv: done: 50,001 rows" in capsys.readouterr().err
