"""Vocabulary training: the same every time, whole, and without unknown characters in any script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import corpora
import pytest
import script_words

from electra.corpus.scripts import count_characters
from electra.corpus.text import clean
from electra.errors import ConfigError, DataError
from electra.tokenizer.alphabet import Alphabet
from electra.tokenizer.backends import BYTE_CHARACTERS, SPECIALS
from electra.tokenizer.train import Choice, choose, count_words, train

SCRIPT = """
import sys
from pathlib import Path
import corpora, script_words
from electra.tokenizer.train import train
kind = sys.argv[1]
lines = [line for document in corpora.documents(300, "train") for line in document]
lines += [line for language in ("thai", "japanese", "hindi") for line in script_words.lines(language, 200)]
train(lines, vocab_size=800, kind=kind).save(Path(sys.argv[2]))
"""


def lines(count: int = 400) -> list[str]:
    return [line for document in corpora.documents(count, "train") for line in document]


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_promise_01_training_is_byte_identical_across_processes(tmp_path: Path, kind: str) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)])
    for seed, threads in (("1", "1"), ("2", "2"), ("3", "5")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": paths}
        env["TOKENIZERS_PARALLELISM"] = "true"
        subprocess.run([sys.executable, "-c", SCRIPT, kind, str(tmp_path / seed)], env=env, check=True, timeout=120)
    first = corpora.digests(tmp_path / "1")
    assert set(first) == {"tokenizer.json", "tokenizer_config.json"}
    assert first == corpora.digests(tmp_path / "2") == corpora.digests(tmp_path / "3")


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_order_of_lines_does_not_matter(kind: str) -> None:
    one, other = (train(some, vocab_size=320, kind=kind) for some in (lines(), reversed(lines())))  # type: ignore[arg-type]
    assert one.vocab == other.vocab and one.merges == other.merges


def test_the_vocabulary_is_whole() -> None:
    tokenizer = train(lines(), vocab_size=300)
    assert tokenizer.vocab_size == 300 and len(set(tokenizer.vocab)) == 300
    assert tokenizer.vocab[:5] == SPECIALS and tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert "river" in tokenizer.vocab and "mountain" in tokenizer.vocab
    for line in lines(50):
        assert tokenizer.unk_id not in tokenizer.encode(line)


def test_every_byte_has_an_entry() -> None:
    tokenizer = train(lines(), vocab_size=400, kind="bytes")
    assert tokenizer.vocab_size == 400 and tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert set(tokenizer.vocab) >= set(BYTE_CHARACTERS.values())
    assert len(tokenizer.merges) == 400 - 5 - 256


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_a_vocabulary_is_as_large_as_the_text_supports(kind: str) -> None:
    tokenizer = train(["one two three one two three"], vocab_size=900, kind=kind)  # type: ignore[arg-type]
    assert tokenizer.vocab_size < 300
    assert not any(entry.startswith("[unused") for entry in tokenizer.vocab)
    assert tokenizer.decode(tokenizer.encode("three two")) == "three two"


def test_case_and_accents_stay_unless_asked() -> None:
    text = ["Café Café CAFÉ über Über"] * 10
    kept = train(text, vocab_size=120)
    assert [kept.token(number) for number in kept.encode("Café über")] == ["Café", "über"]
    folded = train(text, vocab_size=120, lowercase=True, strip_accents=True)
    assert set("".join(folded.vocab[5:])) & set("éÉÜüC") == set()
    assert folded.encode("CAFÉ") == folded.encode("cafe")
    lower = train(text, vocab_size=120, lowercase=True)
    assert "é" in "".join(lower.vocab) and lower.encode("CAFÉ") == lower.encode("café") != lower.encode("cafe")


def test_accents_can_go_without_taking_hangul_apart() -> None:
    text = [*script_words.lines("korean", 50), "Café Café"]
    tokenizer = train(text, vocab_size=400, strip_accents=True)
    assert tokenizer.decode(tokenizer.encode("한국어")) == "한국어" and "e" in tokenizer.decode(tokenizer.encode("é"))
    assert tokenizer.unk_id not in tokenizer.encode(" ".join(text))


# --- nothing of its own text is unknown


@pytest.mark.parametrize("language", script_words.WORDS)
def test_no_character_of_the_text_is_unknown(language: str) -> None:
    text = script_words.lines(language, 60)
    for kind in ("wordpiece", "bytes"):
        tokenizer = train(text, vocab_size=600, kind=kind)  # type: ignore[arg-type]
        assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode_batch(text))


def test_a_rare_character_gets_one_entry_and_is_a_word_of_its_own() -> None:
    text = ["plain words again and again"] * 5000 + ["a ☃ snowman", "w☃rd"]
    tokenizer = train(text, vocab_size=150)
    assert "☃" in tokenizer.vocab and "##☃" not in tokenizer.vocab
    assert [tokenizer.token(number) for number in tokenizer.encode("w☃rd")] == ["w", "☃", "r", "##d"]
    assert not any(entry in ("wrd", "##wrd") for entry in tokenizer.vocab)  # no word is learned with a hole in it


def test_one_unknown_character_does_not_cost_a_word() -> None:
    tokenizer = train(lines(), vocab_size=300)
    ids = tokenizer.encode("mountainЖriver ЖЖ")
    assert [tokenizer.token(number) for number in ids] == ["mountain", "[UNK]", "river", "[UNK]", "[UNK]"]


def test_characters_outside_the_sample_are_known() -> None:
    whole = count_characters([*lines(), "ΩΩ mega ☃ ß"])
    tokenizer = train(lines(), vocab_size=300, characters=whole)
    assert tokenizer.unk_id not in tokenizer.encode("ΩΩ ☃ aßb river")


def test_long_words_are_cut_and_not_lost() -> None:
    long = "ที่นี่" * 100
    for text in (long, "x" * 1000, "a" * 101):
        tokenizer = train([text, *lines(20)], vocab_size=300)
        ids = tokenizer.encode(text)
        assert tokenizer.unk_id not in ids and tokenizer.decode(ids).replace(" ", "") == text


def test_too_many_characters_for_the_vocabulary() -> None:
    text = "".join(chr(0xAC00 + number) * 2 + " " for number in range(400)) + "가" * 5000
    tokenizer = train([text], vocab_size=300)
    ids = tokenizer.encode("가가 " + chr(0xAC00 + 399))
    assert tokenizer.unk_id not in ids[:-1] and ids[-1] == tokenizer.unk_id  # the rarest are unknown


# --- the choice


def test_the_kind_follows_the_scripts() -> None:
    for language in script_words.WORDS:
        characters = count_characters(script_words.lines(language, 60))
        expected = "bytes" if language in script_words.SPACELESS else "wordpiece"
        assert choose(characters, vocab_size=4000, lowercase=False, strip_accents=False).kind == expected, language


def test_the_choice_says_why() -> None:
    thai = choose(count_characters(["ไทย" * 9 + "abc"]), vocab_size=4000, lowercase=False, strip_accents=False)
    assert thai == Choice("bytes", "90% of the letters are of scripts without spaces (Thai)")
    some = count_characters(["a" * 92 + "中" * 8])
    assert choose(some, vocab_size=4000, lowercase=False, strip_accents=False) == Choice(
        "wordpiece", "92% of the letters are of scripts with spaces"
    )
    many = count_characters([chr(0xAC00 + number) for number in range(900)])
    assert choose(many, vocab_size=4000, lowercase=False, strip_accents=False) == Choice(
        "bytes", "its 900 characters would take 1,800 of 4,000 entries"
    )
    assert choose({}, vocab_size=4000, lowercase=False, strip_accents=False).kind == "wordpiece"


def test_the_alphabet() -> None:
    alphabet = Alphabet.of({"a": 90_000, "B": 9_990, ".": 9, "中": 1, " ": 99}, lowercase=True, strip_accents=False)
    assert alphabet.counts == {"a": 90_000, "b": 9_990, ".": 9, "中": 1}
    assert alphabet.common == {"a", "b"} and alphabet.entries == 6
    assert alphabet.within(6) == ({"a", "b", ".", "中"}, {"a", "b"})
    assert alphabet.within(5) == ({"a", "b", ".", "中"}, {"a"})  # the rarest lose their place inside words
    assert alphabet.within(3) == ({"a", "b", "."}, set())  # then their entries


def test_of_characters_too_rare_to_learn_few_have_entries() -> None:
    often = {chr(0x4E00 + number): 10_000 for number in range(1_200)}
    seldom = {chr(0x5E00 + number): 1 for number in range(290)}  # 290 of 12,000,290 characters
    alphabet = Alphabet.of(often | seldom, lowercase=True, strip_accents=True)
    assert alphabet.within(30_000)[0] == often.keys()
    assert len(alphabet.within(1_100)[0]) == 1_100
    fewer = Alphabet.of(dict(list(often.items())[:800]) | seldom, lowercase=True, strip_accents=True)
    assert len(fewer.within(30_000)[0]) == 1_000  # a thousand characters have entries however rare
    twice = Alphabet.of(often | dict.fromkeys(seldom, 2), lowercase=True, strip_accents=True)
    assert len(twice.within(30_000)[0]) == 1_200 + 290 - 150  # 150 of them are 300 of 12,000,580 characters


def test_words_are_what_stands_between_spaces_and_punctuation() -> None:
    counts = count_words(["Don't stop. Don't!", "北京 é"], lowercase=True, strip_accents=True)
    assert counts == {"don": 2, "'": 2, "t": 2, "stop": 1, ".": 1, "!": 1, "北": 1, "京": 1, "e": 1}


def test_promise_20_impossible_requests() -> None:
    with pytest.raises(ConfigError, match="--vocab-size: 50 is too small for a vocabulary of WordPieces"):
        train(["text"], vocab_size=50)
    with pytest.raises(ConfigError, match="--vocab-size: 250 is too small for a vocabulary of bytes .at least 300"):
        train(["text"], vocab_size=250, kind="bytes")
    with pytest.raises(DataError, match="no words"):
        train([""], vocab_size=200)
    with pytest.raises(DataError, match="too little text"):
        train([clean("ไ")], vocab_size=400, kind="bytes")
