"""Tokenizers of our own vocabularies: scripts survive, text comes back, `transformers` gives the same ids."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from functools import cache
from pathlib import Path

import corpora
import numpy as np
import pytest
import script_words
from hypothesis import example, given
from hypothesis import strategies as st

from electra.corpus.text import clean
from electra.errors import DataError
from electra.tokenizer.backends import PIECE, SPECIALS, Kind, as_byte_characters, entry_text, split_pieces
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.many_texts import encode_many
from electra.tokenizer.train import train
from electra.tokenizer.vocabulary import made_for
from electra.tokenizer.word_cache import make_encoder

OWN: tuple[Kind, ...] = ("wordpiece", "bytes")


@cache
def tokenizer(kind: Kind, *, lowercase: bool = False, strip_accents: bool = False) -> Tokenizer:
    """Trained on every language of `script_words`."""
    text = [line for language in script_words.WORDS for line in script_words.lines(language, 60)]
    text += [line for document in corpora.documents(40) for line in document]
    assert kind != "bert"
    return train(text, vocab_size=2500, kind=kind, lowercase=lowercase, strip_accents=strip_accents)


def squeezed(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).split())


# --- what version 0.2 lost


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    "words",
    ["が か", "パ ハ", "हिन्दी हिनदी", "ที่นี่ ทน", "má mà mạ ma", "한국어", "می‌خواهم", "Straße STRASSE", "Über uber"],
)
def test_marks_and_case_survive(kind: Kind, words: str) -> None:
    made = train([words] * 3, vocab_size=400, kind=kind)  # type: ignore[arg-type]
    ids = [made.encode(word) for word in words.split()]
    assert len({tuple(one) for one in ids}) == len(ids)  # each is another word
    for word, one in zip(words.split(), ids, strict=True):
        assert made.unk_id not in one and made.decode(one).replace(" ", "") == word


@pytest.mark.parametrize("kind", OWN)
def test_equal_text_has_equal_ids_however_it_is_composed(kind: Kind) -> None:
    for text in ("Việt", "がパ", "한국어", "naïve", "ёлка"):
        composed, apart = unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)
        assert composed != apart and tokenizer(kind).encode(apart) == tokenizer(kind).encode(composed)


# --- round trip


@given(st.text(max_size=120))
@example(" a  b\n\tc ")
@example("[MASK] [SEP]")
@example("\x00\ufeff\U0010ffff")
def test_text_of_bytes_comes_back_exactly(text: str) -> None:
    made = tokenizer("bytes")
    assert made.decode(made.encode(text)) == unicodedata.normalize("NFC", text)


@given(st.lists(st.sampled_from([line for language in script_words.WORDS for line in script_words.lines(language, 5)])))
def test_wordpiece_text_comes_back_up_to_white_space(some: list[str]) -> None:
    made = tokenizer("wordpiece")
    text = " ".join(some)
    ids = made.encode(text)
    assert made.unk_id not in ids and squeezed(made.decode(ids)) == squeezed(text)


@given(st.text(max_size=60))
@example("w☃rd ☃")
def test_wordpiece_loses_only_unknown_characters(raw: str) -> None:
    made, text = tokenizer("wordpiece"), clean(raw)
    ids, offsets = made.encode_with_offsets(text)
    alphabet = set("".join(entry.removeprefix("##") for entry in made.vocab[5:]))
    known = [char for char in squeezed(text) if char in alphabet]
    assert squeezed(made.decode(ids)) == "".join(known)
    unknown = [text[start:end] for number, (start, end) in zip(ids, offsets, strict=True) if number == made.unk_id]
    assert not alphabet & set("".join(unknown))


# --- transformers


@pytest.mark.parametrize("model_type", ["electra", "roformer", "bert", None])
@pytest.mark.parametrize(
    ("kind", "folded"), [("wordpiece", False), ("bytes", False), ("wordpiece", True), ("bytes", True)]
)
def test_auto_tokenizer_gives_the_same_ids(tmp_path: Path, kind: Kind, folded: bool, model_type: str | None) -> None:
    from transformers import AutoTokenizer

    made = tokenizer(kind, lowercase=folded, strip_accents=folded)
    made.save(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    lines = [line for language in script_words.WORDS for line in script_words.lines(language, 55, "new")]
    lines += [line for document in corpora.documents(20, "new") for line in document]
    lines += [unicodedata.normalize("NFD", line) for line in lines[::20]]
    lines += ["", " ", "\n\ta", "x" * 300, "ไ" * 300, "☃\U0001f600\u200d", "\u0301", "a\u00a0b\u2003c"]
    assert len(lines) > 1000
    assert theirs(lines, add_special_tokens=False)["input_ids"] == made.encode_batch(lines)
    assert len(theirs) == made.vocab_size
    assert theirs.convert_tokens_to_ids(list(SPECIALS)) == list(made.special_ids)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (made.pad_id, made.mask_id)
    pair = theirs("a river", "the house")
    first, second = made.encode("a river"), made.encode("the house")
    assert pair["input_ids"] == [made.cls_id, *first, made.sep_id, *second, made.sep_id]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    some = lines[:200:10]
    assert [theirs.decode(made.encode(line)) for line in some] == [made.decode(made.encode(line)) for line in some]


@pytest.mark.parametrize("kind", OWN)
def test_a_folder_that_transformers_saved_again_loads(tmp_path: Path, kind: Kind) -> None:
    from transformers import AutoTokenizer

    made = tokenizer(kind)
    made.save(tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert Tokenizer.load(tmp_path / "theirs").fingerprint == made.fingerprint


# --- files


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("folded", [{}, {"lowercase": True}, {"strip_accents": True}])
def test_save_and_load(tmp_path: Path, kind: Kind, folded: dict[str, bool]) -> None:
    made = tokenizer(kind, **folded)
    made.save(tmp_path / "a")
    again = Tokenizer.load(tmp_path / "a")
    assert (again.kind, again.vocab, again.merges, again.options) == (made.kind, made.vocab, made.merges, made.options)
    assert again.fingerprint == made.fingerprint
    again.save(tmp_path / "b")
    assert corpora.digests(tmp_path / "a") == corpora.digests(tmp_path / "b")
    assert set(corpora.digests(tmp_path / "a")) == {"tokenizer.json", "tokenizer_config.json"}


def test_fingerprints_differ() -> None:
    folds = [{}, {"lowercase": True}, {"strip_accents": True}]
    made = [tokenizer(kind, **fold) for kind in OWN for fold in folds]
    vocab = tokenizer("wordpiece").vocab
    made += [Tokenizer(vocab, lowercase=False), Tokenizer([*vocab, "more"], kind="wordpiece", lowercase=False)]
    assert len({one.fingerprint for one in made}) == len(made)


def test_promise_16_the_way_text_is_split_does_not_move() -> None:
    """Models and data of earlier versions are split so: another pattern would need to be told apart from this one."""
    assert hashlib.sha256(PIECE.encode()).hexdigest()[:16] == "58f5baebeeef4e4d"
    wordpiece = Tokenizer([*SPECIALS, "a", "##a", "b"], kind="wordpiece", lowercase=False)
    assert wordpiece.fingerprint[:16] == "96c552472d9cc619"
    units = sorted(set(as_byte_characters("ab ")))
    of_bytes = Tokenizer([*SPECIALS, *units, "ab"], kind="bytes", merges=[("a", "b")], lowercase=False)
    assert of_bytes.fingerprint[:16] == "d77762300a536b23"


def test_promise_20_a_tokenizer_that_splits_otherwise_is_refused(tmp_path: Path) -> None:
    tokenizer("bytes").save(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "."
    path.write_text(json.dumps(described))
    with pytest.raises(DataError, match="splits text in a way that this Electra does not know"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "merges"),
    [
        ({"a": 5, "b": 6}, [["a", "b"]]),  # the merge has no entry
        ({"日": 5}, []),  # not a byte
        ({"a": 5}, [["a"]]),
        ({"a": "5"}, []),
    ],
)
def test_promise_20_files_of_bytes_that_are_none(tmp_path: Path, vocab: dict[str, object], merges: object) -> None:
    tokenizer("bytes").save(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"] |= {"vocab": {name: at for at, name in enumerate(SPECIALS)} | vocab, "merges": merges}
    path.write_text(json.dumps(described))
    with pytest.raises(DataError, match="is neither a BERT-like WordPiece tokenizer nor one of Electra's"):
        Tokenizer.load(tmp_path)


# --- the vocabulary a user names


def test_any_tokenizer_can_be_named(tmp_path: Path) -> None:
    for kind in OWN:
        made = tokenizer(kind)
        made.save(tmp_path / kind / "tokenizer")
        for path in (tmp_path / kind, tmp_path / kind / "tokenizer", tmp_path / kind / "tokenizer" / "tokenizer.json"):
            assert Tokenizer.read(path).fingerprint == made.fingerprint
    bert = Tokenizer([*SPECIALS, "a", "##a"], lowercase=False, strip_accents=False)
    bert.save(tmp_path / "bert")
    assert Tokenizer.read(tmp_path / "bert" / "vocab.txt").fingerprint == bert.fingerprint  # the config beside it tells
    (tmp_path / "alone.txt").write_bytes((tmp_path / "bert" / "vocab.txt").read_bytes())
    assert Tokenizer.read(tmp_path / "alone.txt").lowercase  # no entry has upper case


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["the", "##ing", "[unused1]", "cafe"], (True, True)),
        (["the", "The"], (False, False)),
        (["größer", "##é"], (True, False)),
        (["हिन्दी"], (True, False)),
        (["ㅎ", "##ㅏ"], (True, True)),
    ],
)
def test_what_a_vocabulary_was_made_for(entries: list[str], expected: tuple[bool, bool]) -> None:
    assert made_for([*SPECIALS, *entries]) == expected


# --- the fast encoder


@given(st.text(max_size=80), st.sampled_from(OWN), st.booleans(), st.sampled_from([2, 4]))
@example("  THE-RIVER: x" + "y" * 130 + " ไทย" * 50, "bytes", False, 2)
@example("a" * 101 + " " + "b" * 205 + "☃", "wordpiece", False, 2)
def test_encoders_equal_the_tokenizer(raw: str, kind: Kind, folded: bool, width: int) -> None:
    made = tokenizer(kind, lowercase=folded)
    check(made, [clean(raw)], width)


def check(made: Tokenizer, texts: list[str], width: int) -> None:
    encoder = make_encoder(made, token_bytes=width, limit=7)
    for text in texts:
        expected = b"".join(number.to_bytes(width, "little") for number in made.encode(text))
        assert encoder.encode(text) == expected, text
        assert encoder.encode(text) == expected  # now out of the cache


@pytest.mark.parametrize("kind", OWN)
def test_encoders_on_every_script(kind: Kind) -> None:
    made = tokenizer(kind)
    encoder = make_encoder(made, token_bytes=2)
    for language in script_words.WORDS:
        for line in map(clean, script_words.lines(language, 30, "fast")):
            assert encoder.encode(line) == b"".join(number.to_bytes(2, "little") for number in made.encode(line))
            spaced = " " + line
            assert encoder.encode(spaced) == b"".join(number.to_bytes(2, "little") for number in made.encode(spaced))


@given(
    st.lists(st.text(max_size=40) | st.text(st.characters(codec="ascii"), max_size=60), max_size=5),
    st.sampled_from([("wordpiece", False), ("wordpiece", True), ("bytes", False)]),
)
@example(["tabs\tand\x00 controls\x7f", "[MASK] don't  stop ", "x" * 101, "caf\u00e9", ""], ("wordpiece", False))
def test_many_texts_have_the_ids_of_each(texts: list[str], kind: tuple[Kind, bool]) -> None:
    made = tokenizer(kind[0], lowercase=kind[1])
    for some in (texts, [*texts, *["The old Queen"] * 70]):  # without a cache, with one
        found = encode_many(made, some)
        assert found.lists() == [made.encode(text) for text in some]
        assert found.ids.dtype == np.int32 and len(found.sizes) == len(some)


def test_unknown_is_counted_in_characters() -> None:
    words = Tokenizer(
        [*SPECIALS, *(chr(code) for code in range(97, 123)), "##a", *(f"[unused{n}]" for n in range(999))]
    )
    encoder = make_encoder(words, token_bytes=2)
    cases = {"a b": 0, "a xyz b": 3, "日本 ab": 2 + 2, "z" * 150: 150}
    for text, unknown in cases.items():
        assert encoder.unknown_characters([text], [encoder.encode(text)]) == unknown
    assert encoder.unknown_characters(list(cases), [encoder.encode(text) for text in cases]) == sum(cases.values())
    misaligned = (0x0100).to_bytes(2, "little") + (0x0000).to_bytes(2, "little")  # 00 01 00 00 holds 01 00
    assert encoder.unknown_characters(["a"], [misaligned]) == 0


# --- pieces and tokens


@given(st.text(max_size=80))
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(split_pieces(text)) == text


def test_pieces_of_scripts() -> None:
    assert split_pieces("Hello, world 12345!") == ["Hello", ",", " world", " 123", "45", "!"]
    assert split_pieces("東京タワーへ行く。") == ["東京", "タワー", "へ", "行", "く", "。"]
    assert split_pieces("ภาษาไทย Python") == ["ภาษาไทย", " Python"]
    assert split_pieces("हिन्दी भाषा") == ["हिन्दी", " भाषा"]
    assert max(map(len, split_pieces("ไ" * 1000))) == 48


def test_tokens_are_readable() -> None:
    made = tokenizer("bytes")
    assert made.tokens_hold_spaces and not tokenizer("wordpiece").tokens_hold_spaces
    assert made.token(made.mask_id) == "[MASK]" and made.token(made.vocab.index("Ġ")) == " "
    assert "".join(made.token(number) for number in made.encode("日本語 です")) == "日本語 です"
    assert entry_text(as_byte_characters("日")[:2]) == "\\xe6\\x97"


@pytest.mark.parametrize("kind", OWN)
def test_special_tokens_never_come_out_of_text(kind: Kind) -> None:
    made = tokenizer(kind)
    kept = {made.mask_id, made.cls_id, made.sep_id, made.pad_id}
    for text in ("[MASK]", "a [CLS] b", "[sep]", "[PAD][UNK]", "日[MASK]本"):
        assert not kept & set(made.encode(text))
        assert not kept & set(made.encode_batch([text])[0])


# --- offsets


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("text", ["The river, 東京 and ที่นี่!", "  a  b", "हिन्दी भाषा", "☃ \U0001f600x"])
def test_spans_cover_the_text(kind: Kind, text: str) -> None:
    ids, spans = tokenizer(kind).encode_with_offsets(text)
    assert len(ids) == len(spans)
    assert list(spans) == sorted(spans) and all(0 <= start <= end <= len(text) for start, end in spans)
    covered = {at for start, end in spans for at in range(start, end)}
    assert {at for at, char in enumerate(text) if not char.isspace()} <= covered
    assert not any(text[start].isspace() or text[end - 1].isspace() for start, end in spans if start < end)


def test_words_in_a_sentence() -> None:
    words = ["The", "river", "東京", "駅", "is", "ไทย"]
    assert tokenizer("wordpiece").in_sentence(words) == words
    assert tokenizer("bytes").in_sentence(words) == ["The", " river", "東京", "駅", "is", "ไทย"]
    assert tokenizer("bytes").in_sentence([]) == []
