"""The codec against transformers, its files, and vocabularies that cannot be used."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import corpora
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.corpus.text import clean
from electra.errors import DataError
from electra.tokenizer.backends import SPECIALS
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.many_texts import encode_many
from electra.tokenizer.vocabulary import read_vocab
from electra.tokenizer.word_cache import WordEncoder

TEXTS = [
    "The old Queen walked; the river was dark.",
    "CAFÉ Über naïve, 北京 and 東京!",
    "unknown: \U0001f600 ☃ qqqqqq" + "z" * 150,
    "tabs\tand\nlines  and\u00a0spaces \u200b\u00ad",
    "",
    "it's 3.14, isn't it? (yes) — “quotes” №5",
]
MODES = [
    {"lowercase": True, "strip_accents": True},
    {"lowercase": True, "strip_accents": False},
    {"lowercase": False, "strip_accents": False},
]


def vocab(folder: Path) -> list[str]:
    return read_vocab(corpora.write_vocab(folder / "v.txt"))


@pytest.fixture(params=MODES, ids=["uncased", "accents", "cased"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return Tokenizer([*vocab(tmp_path), "The", "Caf", "##É", "Ü"], **request.param)


def test_transformers_loads_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertTokenizerFast

    folder = tmp_path / "saved"
    tokenizer.save(folder)
    for other in (AutoTokenizer.from_pretrained(folder), BertTokenizerFast.from_pretrained(folder)):
        assert len(other) == tokenizer.vocab_size
        assert other.mask_token_id == tokenizer.mask_id and other.pad_token_id == tokenizer.pad_id
        for text in TEXTS:
            assert other(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
        whole = other("a river", "the house")
        first, second = tokenizer.encode("a river"), tokenizer.encode("the house")
        cls, sep = tokenizer.cls_id, tokenizer.sep_id
        assert whole["input_ids"] == [cls, *first, sep, *second, sep]
        assert whole["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_the_vocabulary_alone_gives_transformers_the_same_ids(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    path = corpora.write_vocab(tmp_path / "vocab.txt")
    ours, theirs = Tokenizer(read_vocab(path)), BertTokenizerFast(str(path))
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)


def test_load_gives_back_what_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    tokenizer.save(folder)
    again = Tokenizer.load(folder)
    assert again.fingerprint == tokenizer.fingerprint and again.vocab == tokenizer.vocab
    (folder / "vocab.txt").unlink()  # as transformers 5 saves
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.load(folder).fingerprint == tokenizer.fingerprint


def test_a_folder_that_transformers_saved_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert Tokenizer.load(tmp_path / "theirs").fingerprint == tokenizer.fingerprint


def test_saving_is_byte_identical(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a")
    Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    assert corpora.digests(tmp_path / "a") == corpora.digests(tmp_path / "b")


def test_fingerprints_differ_with_vocabulary_and_options(tmp_path: Path) -> None:
    entries = vocab(tmp_path)
    prints = {Tokenizer(entries, **mode).fingerprint for mode in MODES}
    prints.add(Tokenizer([*entries, "more"]).fingerprint)
    assert len(prints) == 4


def test_encode_decode_offsets(tmp_path: Path) -> None:
    tokenizer = Tokenizer(vocab(tmp_path))
    text = "  The Café, river"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text) == tokenizer.encode_batch([text, "x"])[0]
    assert [tokenizer.token(number) for number in ids][:2] == ["the", "c"]
    assert [text[start:end] for start, end in offsets] == ["The", "C", "a", "f", "é", ",", "river"]
    assert tokenizer.decode([tokenizer.cls_id, *tokenizer.encode("the river"), tokenizer.sep_id]) == "the river"
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)


def test_special_tokens_never_come_out_of_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(vocab(tmp_path))
    for text in ("[MASK]", "a [CLS] b", "[sep]", "[PAD][UNK]"):
        assert not {tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id} & set(
            tokenizer.encode(text)
        )


# --- the fast encoder


@given(st.text(max_size=80), st.sampled_from(MODES), st.sampled_from([2, 4]))
def test_word_encoder_equals_the_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, raw: str, mode: dict[str, bool], width: int
) -> None:
    tokenizer = Tokenizer(vocab(tmp_path_factory.getbasetemp()), **mode)
    check_words(tokenizer, WordEncoder(tokenizer, token_bytes=width, limit=5), [clean(raw)], width)


def check_words(tokenizer: Tokenizer, encoder: WordEncoder, texts: list[str], width: int) -> None:
    for text in texts:
        expected = b"".join(number.to_bytes(width, "little") for number in tokenizer.encode(text))
        assert encoder.encode(text) == expected, text
        assert encoder.encode(text) == expected  # now out of the cache


def test_word_encoder_on_awkward_words(tokenizer: Tokenizer) -> None:
    texts = [clean(text) for text in TEXTS]
    texts += [
        "the,river",
        "THE-RIVER",
        "x" * 99,
        "x" * 100,
        "x" * 101,
        "a" * 60 + "," * 60,
        "İstanbul ŞŞ ǅ ﬁ",
        "l'été",
        "[MASK]",
    ]
    check_words(tokenizer, WordEncoder(tokenizer, token_bytes=2), texts, 2)


@given(st.text(st.characters(codec="ascii"), max_size=80), st.sampled_from(MODES))
def test_many_texts_have_the_ids_of_each(
    tmp_path_factory: pytest.TempPathFactory, raw: str, mode: dict[str, bool]
) -> None:
    tokenizer = Tokenizer(vocab(tmp_path_factory.getbasetemp()), **mode)
    texts = [raw, *TEXTS, *["the river"] * 60]
    assert encode_many(tokenizer, texts).lists() == [tokenizer.encode(text) for text in texts]


# --- vocabularies


@pytest.mark.parametrize("special", SPECIALS)
def test_promise_20_vocabulary_without_a_special_token(tmp_path: Path, special: str) -> None:
    path = corpora.write_vocab(tmp_path / "v.txt", leave_out=special)
    with pytest.raises(DataError, match=rf"v\.txt: the vocabulary lacks \[{special[1:-1]}\]"):
        read_vocab(path)


def test_promise_20_vocabularies_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("\n".join([*SPECIALS, "a", "b", "a"]))
    with pytest.raises(DataError, match="'a' stands twice, in lines 6 and 8"):
        read_vocab(path)
    path.write_text("\n".join([*SPECIALS, "", "b"]))
    with pytest.raises(DataError, match="line 6 is empty"):
        read_vocab(path)
    path.write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(DataError, match="byte 6 is not valid UTF-8"):
        read_vocab(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_vocab(tmp_path / "missing.txt")
    path.write_bytes("\r\n".join([*SPECIALS, "a", "\u2028"]).encode() + b"\r\n")
    assert read_vocab(path) == [*SPECIALS, "a", "\u2028"]


def test_promise_20_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer here"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(DataError, match="not a JSON object"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    with pytest.raises(DataError, match="neither a BERT-like WordPiece"):
        Tokenizer.load(tmp_path)
    holes = {"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}, "normalizer": {"type": "BertNormalizer"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(holes))
    with pytest.raises(DataError, match="not 0, 1, 2"):
        Tokenizer.load(tmp_path)


@pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with corpus/ and vocab/")
def test_the_published_vocabulary_on_real_text() -> None:
    from transformers import BertTokenizerFast

    data = Path(os.environ["ELECTRA_DATA"])
    path = data / "vocab" / "bert-uncased.txt"
    ours, theirs = Tokenizer(read_vocab(path)), BertTokenizerFast(str(path))
    encoder = WordEncoder(ours, token_bytes=2)
    with open(data / "corpus" / "valid.txt", encoding="utf-8") as file:
        lines = [clean(line) for line in itertools.islice(file, 0, 6000, 4)]
    assert theirs(lines, add_special_tokens=False)["input_ids"] == ours.encode_batch(lines)
    check_words(ours, encoder, lines, 2)
