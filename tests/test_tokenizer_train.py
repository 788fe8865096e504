"""Vocabulary training: the same every time, whole, and useful for any script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import corpora
import pytest

from electra.errors import ConfigError, DataError
from electra.tokenizer.codec import SPECIALS
from electra.tokenizer.train import count_words, train

SCRIPT = """
import sys
from pathlib import Path
import corpora
from electra.tokenizer.train import train
lines = [line for document in corpora.documents(400, "train") for line in document]
train(lines, vocab_size=400).save(Path(sys.argv[1]))
"""


def lines(count: int = 400) -> list[str]:
    return [line for document in corpora.documents(count, "train") for line in document]


def test_promise_01_training_is_byte_identical_across_processes(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)])
    for seed, threads in (("1", "1"), ("2", "2"), ("3", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": paths}
        env["TOKENIZERS_PARALLELISM"] = "true"
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / seed)], env=env, check=True, timeout=120)
    first = corpora.digests(tmp_path / "1")
    assert len(first) == 3
    assert first == corpora.digests(tmp_path / "2") == corpora.digests(tmp_path / "3")


def test_order_of_lines_does_not_matter() -> None:
    assert train(lines(), vocab_size=300).vocab == train(reversed(lines()), vocab_size=300).vocab


def test_the_vocabulary_is_whole() -> None:
    tokenizer = train(lines(), vocab_size=300)
    assert tokenizer.vocab_size == 300 and len(set(tokenizer.vocab)) == 300
    assert tokenizer.vocab[:5] == SPECIALS and tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert "river" in tokenizer.vocab and "mountain" in tokenizer.vocab
    for line in lines(50):
        assert tokenizer.unk_id not in tokenizer.encode(line)


def test_small_text_is_filled_up() -> None:
    tokenizer = train(["one two three one two three"], vocab_size=200)
    assert tokenizer.vocab_size == 200 and tokenizer.vocab[-1].startswith("[unused")
    assert tokenizer.decode(tokenizer.encode("three two")) == "three two"


def test_case_and_accents() -> None:
    text = ["Café Café CAFÉ über Über"] * 10
    assert set("".join(train(text, vocab_size=120).vocab[5:])) & set("éÉÜ") == set()
    assert "é" in "".join(train(text, vocab_size=120, strip_accents=False).vocab)
    cased = train(text, vocab_size=120, lowercase=False, strip_accents=False)
    assert cased.token(cased.encode("Café")[0]) == "Café"


def test_other_scripts_get_their_characters() -> None:
    text = ["東京は日本の首都です。", "Москва столица России", "नमस्ते दुनिया", "สวัสดีชาวโลก"] * 20
    tokenizer = train(text, vocab_size=300, strip_accents=False)
    for line in text[:4]:
        assert tokenizer.unk_id not in tokenizer.encode(line)


def test_rare_characters_stay_out() -> None:
    text = ["plain words again and again"] * 5000 + ["a ☃ snowman", "w☃rd"]
    tokenizer = train(text, vocab_size=150)
    assert "☃" not in "".join(tokenizer.vocab)
    assert not any(entry in ("wrd", "##wrd") for entry in tokenizer.vocab)  # no word is learned with a hole in it


def test_words_are_what_wordpiece_sees() -> None:
    counts = count_words(["Don't stop. Don't!", "北京 " + "x" * 101], lowercase=True, strip_accents=True)
    assert counts == {"don": 2, "'": 2, "t": 2, "stop": 1, ".": 1, "!": 1, "北": 1, "京": 1}


def test_promise_20_impossible_requests() -> None:
    with pytest.raises(ConfigError, match="--vocab-size: 50 is too small"):
        train(["text"], vocab_size=50)
    with pytest.raises(DataError, match="no words"):
        train([""], vocab_size=200)
