"""What `electra prepare` does with text: the tokenizer follows it, nothing is lost, and it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import corpora
import numpy as np
import pytest
import script_words
from click.testing import CliRunner

from electra.cli.prepare import command
from electra.corpus.sample import sample
from electra.corpus.scripts import count_characters
from electra.corpus.sources import resolve
from electra.corpus.text import clean
from electra.errors import ConfigError
from electra.shards.build import prepare
from electra.shards.dataset import Prepared, open_data
from electra.shards.options import PrepareOptions
from electra.shards.units import with_spaces
from electra.tokenizer.backends import SPECIALS

SMALL = PrepareOptions(vocab_size=1500)


def write(path: Path, language: str, documents: int = 40) -> Path:
    some = [script_words.lines(language, 3, number) for number in range(documents)]
    path.write_text(corpora.text(some), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def documents_of(data: Prepared) -> list[str]:
    """The text of every document, decoded."""
    tokenizer, texts = data.tokenizer(), []
    for split in (data.train, data.held_out):
        edges = split.sentence_starts[split.document_starts].tolist()
        texts += [tokenizer.decode(split.slice(a, b).tolist()) for a, b in zip(edges, edges[1:], strict=False)]
    return texts


@pytest.mark.parametrize("language", script_words.WORDS)
def test_nothing_of_a_language_is_lost(tmp_path: Path, language: str) -> None:
    prepare([str(write(tmp_path / "a.txt", language))], out=tmp_path / "data", options=SMALL)
    data = open_data(tmp_path / "data", verify=True)
    kind = "bytes" if language in script_words.SPACELESS else "wordpiece"
    assert data.manifest["tokenizer"]["kind"] == data.tokenizer().kind == kind
    texts = ["".join("".join(clean(line) for line in script_words.lines(language, 3, n)).split()) for n in range(40)]
    assert {"".join(text.split()) for text in documents_of(data)} == set(texts)
    counters = data.manifest["counters"]
    whole = sum(len(clean(line)) for number in range(40) for line in script_words.lines(language, 3, number))
    assert (counters["characters"], counters["unknown_characters"]) == (whole, 0)
    tokenizer = data.tokenizer()
    assert tokenizer.unk_id not in np.concatenate([s.slice(0, s.n_tokens) for s in (data.train, data.held_out)])
    assert not any(entry.startswith("[unused") for entry in tokenizer.vocab)


def test_text_of_bytes_comes_back_line_by_line(tmp_path: Path) -> None:
    lines = ["One. Two! Three, four? 五。六。 Seven.", "ไทย นี่. A B"]
    (tmp_path / "a.txt").write_text("\n\n".join(lines * 1 + [f"filler text {n}" for n in range(40)]))
    prepare([str(tmp_path / "a.txt")], out=tmp_path / "data", options=PrepareOptions(vocab_size=400, tokenizer="bytes"))
    found = documents_of(open_data(tmp_path / "data"))
    assert set(lines) <= set(found)  # spaces between sentences included


def test_sentences_with_their_spaces() -> None:
    assert with_spaces("A b. C d.", ["A b.", "C d."]) == ["A b.", " C d."]
    assert with_spaces("一。二。 三。", ["一。", "二。", "三。"]) == ["一。", "二。", " 三。"]
    assert with_spaces("whole", ["whole"]) == ["whole"]


# --- one line says what was chosen


def test_one_line_names_the_choice_which_can_be_made(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "thai")
    output = run(path, "--out", tmp_path / "auto", "--vocab-size", "600")
    assert "tokenizer: byte-level BPE, " in output and "of the letters are of scripts without spaces (Thai)" in output
    assert "entries of byte-level BPE; none of the characters unknown" in output and "[UNK]" not in output
    output = run(path, "--out", tmp_path / "asked", "--vocab-size", "600", "--tokenizer", "wordpiece")
    assert (
        "tokenizer: WordPiece, as asked" in output and "entries of WordPiece; none of the characters unknown" in output
    )


def test_a_smaller_vocabulary_is_announced(tmp_path: Path) -> None:
    output = run(corpora.write_corpus(tmp_path / "a.txt", 40), "--out", tmp_path / "data", "--vocab-size", "20000")
    size = open_data(tmp_path / "data").vocab_size
    assert size < 2000 and f"vocabulary: {size:,} entries, not 20,000: nothing else occurs twice in the text" in output
    output = run(tmp_path / "a.txt", "--out", tmp_path / "usual")
    assert f"vocabulary: {size:,} entries: nothing else occurs twice in the text" in output


def test_unknown_is_counted_in_characters(tmp_path: Path) -> None:
    """As the issue had it: a long word of Thai is one [UNK] to BERT's WordPiece, and 100 % of what it stood for."""
    thai = "ที่นี่" * 30
    some = [*corpora.documents(30), [thai]]
    (tmp_path / "a.txt").write_text(corpora.text(some))
    letters = "abcdefghijklmnopqrstuvwxyz."
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *letters, *("##" + one for one in letters)]))
    output = run(
        tmp_path / "a.txt", "--out", tmp_path / "data", "--vocab", tmp_path / "vocab.txt", "--no-strip-accents"
    )
    counters = open_data(tmp_path / "data").manifest["counters"]
    unknown, total = counters["unknown_characters"], counters["characters"]
    assert total == sum(len(clean(line)) for lines in some for line in lines)
    words = [word for lines in corpora.documents(30) for line in lines for word in clean(line).split(" ")]
    foreign = sum(len(word.strip(".")) for word in words if not word.isascii())  # no entry has their letters
    assert unknown == len(thai) + foreign
    assert f"{unknown / total:.4%} of the characters unknown" in output
    assert f"  warning     {unknown / total:.2%} of the characters are [UNK]; train a vocabulary" in output


def test_unknown_characters_of_held_out_files_are_counted(tmp_path: Path) -> None:
    train, held = corpora.write_corpus(tmp_path / "a.txt", 40), tmp_path / "held.txt"
    held.write_text("ΩΩΩ river\n\nthe house")
    manifest = prepare([str(train)], out=tmp_path / "data", options=SMALL, held_out=[str(held)]).manifest
    assert manifest is not None
    assert manifest["counters"]["unknown_characters"] == 3


# --- the characters of the whole corpus


def test_characters_outside_the_sample_get_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import electra.shards.build as build

    some = corpora.documents(3000)
    some[-1] = ["☃ " + chr(0x1F600 + number) for number in range(5)]
    (tmp_path / "a.txt").write_text(corpora.text(some))
    parts = []

    def little(*arguments: object, **options: object) -> object:
        parts.append(sample(*arguments, **options, limit=1 << 18))  # type: ignore[arg-type]
        return parts[-1]

    monkeypatch.setattr(build, "sample", little)
    manifest = prepare([str(tmp_path / "a.txt")], out=tmp_path / "data", options=SMALL, workers=1).manifest
    assert manifest is not None and not any("☃".encode() in block.payload for block in parts[0].blocks)
    assert manifest["counters"]["unknown_characters"] == 0


def test_characters_are_counted_in_nfc(tmp_path: Path) -> None:
    texts = ["e\u0301 \u1112\u1161\u11ab plain", "日本 é", "ascii only\n\nsecond", "हिन्दी"]
    rows = "\n".join(json.dumps({"text": text}) for text in texts)  # escaped
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "b.txt").write_text("\n\n".join(texts))
    (tmp_path / "c.csv").write_text("text\n" + "".join('"' + text.replace("\n", " ") + '"\n' for text in texts))
    expected = set(count_characters(["é 한 plain", texts[1], "ascii onlysecond", texts[3]]))
    for name in ("a.jsonl", "b.txt", "c.csv"):
        sources = resolve([str(tmp_path / name)], spool=tmp_path, text_column="text", skip=tmp_path / "none")
        counts = sample(sources, text_column="text").characters
        assert {char for char in counts if char not in "\n\0"} == expected
        assert counts["é"] == 2 and counts["한"] == 1 and counts["日"] == 1


# --- the same bytes


def test_promise_01_data_of_bytes_is_the_same_in_every_process(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "japanese", 80)
    src = str(Path(__file__).parents[1] / "src")
    for name, threads in (("one", "1"), ("two", "3")):
        env = {**os.environ, "PYTHONPATH": src, "PYTHONHASHSEED": threads, "RAYON_NUM_THREADS": threads}
        arguments = ["prepare", str(path), "--out", str(tmp_path / name), "--vocab-size", "700", "--workers", threads]
        subprocess.run([sys.executable, "-m", "electra", *arguments], env=env, check=True, timeout=120)
    assert corpora.digests(tmp_path / "one") == corpora.digests(tmp_path / "two")
    again = [sys.executable, "-m", "electra", *arguments]
    done = subprocess.run(again, env=env, check=True, timeout=120, capture_output=True, text=True)
    assert "already prepared" in done.stdout


# --- a given vocabulary


def test_the_tokenizer_of_other_data_can_be_used(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "thai")
    more = write(tmp_path / "b.txt", "lao")
    prepare([str(first)], out=tmp_path / "one", options=SMALL)
    fingerprint = open_data(tmp_path / "one").fingerprint
    for name, vocab in (("folder", tmp_path / "one"), ("file", tmp_path / "one/tokenizer/tokenizer.json")):
        prepare([str(more)], out=tmp_path / name, vocab=vocab)
        data = open_data(tmp_path / name)
        assert data.fingerprint == fingerprint and "tokenizer" not in data.manifest["options"]
        assert prepare([str(more)], out=tmp_path / name, vocab=vocab).already_done
    with pytest.raises(ConfigError, match="was trained with another choice of case and accents"):
        prepare([str(more)], out=tmp_path / "no", vocab=tmp_path / "one", options=PrepareOptions(lowercase=True))


def test_a_given_vocabulary_folds_text_as_it_was_made(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 40)
    plain = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz."]
    for name, entries, expected in (
        ("uncased", plain, (True, True)),
        ("accents", [*plain, "é"], (True, False)),
        ("cased", [*plain, "T", "é"], (False, False)),
    ):
        (tmp_path / f"{name}.txt").write_text("\n".join(entries))
        prepare([str(path)], out=tmp_path / name, vocab=tmp_path / f"{name}.txt")
        tokenizer = open_data(tmp_path / name).tokenizer()
        assert tokenizer.kind == "bert" and (tokenizer.lowercase, tokenizer.strip_accents) == expected
    asked = PrepareOptions(lowercase=False, strip_accents=False)
    prepare([str(path)], out=tmp_path / "asked", vocab=tmp_path / "uncased.txt", options=asked)
    assert not open_data(tmp_path / "asked").tokenizer().lowercase


def test_promise_20_tokenizers_that_cannot_be_made(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "thai")
    with pytest.raises(ConfigError, match="--vocab-size: 200 is too small for a vocabulary of bytes"):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(vocab_size=200))
    with pytest.raises(ConfigError, match='--tokenizer: "unigram" is not possible .one of: auto, wordpiece, bytes'):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(tokenizer="unigram"))  # type: ignore[arg-type]
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    with pytest.raises(ConfigError, match="--tokenizer: is for a vocabulary to train"):
        prepare([str(path)], out=tmp_path / "data", vocab=vocab, options=PrepareOptions(tokenizer="bytes"))


def test_promise_16_data_of_version_0_2_is_found_prepared(tmp_path: Path) -> None:
    """The golden folder was made by 0.1 with a given vocabulary: the same command still verifies it."""
    import shutil

    golden = Path(__file__).parent / "golden" / "data-v1"
    shutil.copytree(golden, tmp_path / "data")
    path = corpora.write_corpus(tmp_path / "a.txt", 24, "golden")
    vocab = corpora.write_vocab(tmp_path / "vocab.txt")
    arguments = [path, "--out", tmp_path / "data", "--vocab", vocab, "--strip-accents"]
    output = run(*arguments)
    assert "already prepared; every file verified" in output and "entries of BERT's WordPiece" in output
    assert (
        open_data(tmp_path / "data").tokenizer().fingerprint
        == json.loads((golden / "data.json").read_text())["tokenizer"]["fingerprint"]
    )
