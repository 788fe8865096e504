"""Preparing data: what comes out, byte-identical whatever the workers, and what a second run does."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import corpora
import numpy as np
import pytest

from electra.corpus.sentences import split_sentences
from electra.corpus.text import clean, content_key
from electra.errors import ConfigError, DataError
from electra.shards import build
from electra.shards.build import prepare
from electra.shards.dataset import Split, open_data
from electra.shards.locks import claim, lock
from electra.shards.options import PrepareOptions, parse_worker

SMALL = PrepareOptions(vocab_size=300)
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BLOCK_BYTES", 20_000)  # many units, and worker processes, for little text


def sentences(split: Split) -> list[list[list[int]]]:
    """Token ids of every sentence of every document."""
    tokens, starts = split.slice(0, split.n_tokens).tolist(), split.sentence_starts.tolist()
    whole = [tokens[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    edges = split.document_starts.tolist()
    return [whole[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def test_shards_hold_exactly_the_tokens_of_the_text(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 120)
    vocab = corpora.write_vocab(tmp_path / "vocab.txt")
    result = prepare([str(path)], out=tmp_path / "data", vocab=vocab, workers=1)
    data = open_data(tmp_path / "data", verify=True)
    tokenizer = data.tokenizer()
    expected = {}
    for lines in corpora.documents(120):
        cleaned = [clean(line) for line in lines]
        key = content_key(cleaned)
        assert key
        texts = [sentence for line in cleaned for sentence in split_sentences(line)]
        expected[int.from_bytes(key[:8], "little")] = [tokenizer.encode(text) for text in texts]
    ids = [*data.train.document_ids.tolist(), *data.held_out.document_ids.tolist()]
    found = dict(zip(ids, [*sentences(data.train), *sentences(data.held_out)], strict=True))
    assert found == expected
    order = [number for number in expected if number in set(data.train.document_ids.tolist())]
    assert order == data.train.document_ids.tolist()  # source order
    assert data.vocab_size == tokenizer.vocab_size and data.fingerprint == tokenizer.fingerprint
    assert result.manifest == data.manifest and result.text_bytes == path.stat().st_size
    assert data.train.sentence_starts.dtype == data.train.document_starts.dtype == np.int64
    assert data.train.document_ids.dtype == np.uint64


def test_counters_add_up(tmp_path: Path) -> None:
    some = corpora.documents(60)
    shouted = [[line.upper().replace(".", "!") for line in lines] for lines in some[:7]]
    text = corpora.text([*some, *shouted, ["..."], ["Hm"]])
    (tmp_path / "a.txt").write_text(text)
    manifest = prepare([str(tmp_path / "a.txt")], out=tmp_path / "data", options=SMALL).manifest
    assert manifest is not None
    counters, splits = manifest["counters"], manifest["splits"]
    assert counters["documents_read"] == 69
    assert counters["dropped_short"] == 2 and counters["dropped_duplicate"] == 7
    assert splits["train"]["documents"] + splits["held-out"]["documents"] == 60
    assert splits["held-out"]["documents"] >= 1
    assert counters["text_bytes"] == len(text.encode())


def test_promise_01_same_bytes_with_1_and_3_workers(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    corpora.write_corpus(folder / "a.txt", 400, "a")
    (folder / "b.txt.gz").write_bytes(gzip.compress(corpora.text(corpora.documents(300, "b")).encode()))
    repeated = corpora.documents(100, "a") + corpora.documents(100, "c")
    rows = [json.dumps({"text": "\n".join(lines)}) for lines in repeated]
    (folder / "c.jsonl").write_text("\n".join(rows))
    prepare([str(folder)], out=tmp_path / "one", options=SMALL, workers=1)
    prepare([str(folder)], out=tmp_path / "three", options=SMALL, workers=3)
    for part in ("3/3", "1/3", "2/3"):
        prepare([str(folder)], out=tmp_path / "machines", options=SMALL, workers=1, worker=part)
    one = corpora.digests(tmp_path / "one")
    assert len(one) == 3 + 3 + 2 + 2
    assert one == corpora.digests(tmp_path / "three") == corpora.digests(tmp_path / "machines")
    assert json.loads((tmp_path / "one" / "data.json").read_text())["counters"]["dropped_duplicate"] == 100


def test_promise_01_same_bytes_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the place of the corpus nor that of the output is in the data."""
    for place in ("x", "y"):
        corpora.write_corpus(tmp_path / place / "deep" / "a.txt", 60)
    prepare([str(tmp_path / "x")], out=tmp_path / "x-data", options=SMALL)
    monkeypatch.chdir(tmp_path / "y")
    prepare(["."], out=Path("data"), options=SMALL)
    assert corpora.digests(tmp_path / "x-data") == corpora.digests(tmp_path / "y" / "data")


def test_part_workers_wait_for_each_other_and_a_plain_run_takes_over(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 600)
    out = tmp_path / "data"
    first = prepare([str(path)], out=out, options=SMALL, workers=1, worker="1/2")
    assert first.manifest is None and not (out / "data.json").exists()
    with pytest.raises(DataError, match="is not finished"):
        open_data(out)
    last = prepare([str(path)], out=out, options=SMALL, workers=1)
    assert last.manifest is not None and 0 < last.units_kept < last.units
    prepare([str(path)], out=tmp_path / "plain", options=SMALL, workers=1)
    assert corpora.digests(out) == corpora.digests(tmp_path / "plain")


def test_promise_14_same_command_again_verifies_and_changes_refuse(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 60)
    out = tmp_path / "data"
    prepare([str(path)], out=out, options=SMALL)
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    again = prepare([str(path)], out=out, options=SMALL)
    assert again.already_done and again.manifest == open_data(out).manifest
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before
    with pytest.raises(ConfigError, match=r"min_chars: 5 -> 9; vocab_size: 300 -> 301"):
        prepare([str(path)], out=out, options=PrepareOptions(vocab_size=301, min_chars=9))
    other = corpora.write_corpus(tmp_path / "b.txt", 60, "b")
    with pytest.raises(ConfigError, match=r"train: a\.txt -> a\.txt, b\.txt"):
        prepare([str(path), str(other)], out=out, options=SMALL)
    with pytest.raises(ConfigError, match=r"held-out:  -> b\.txt"):
        prepare([str(path)], out=out, options=SMALL, held_out=[str(other)])
    path.write_bytes(path.read_bytes().replace(b"river", b"RIVER"))
    with pytest.raises(ConfigError, match=r"source 'a\.txt' has changed"):
        prepare([str(path)], out=out, options=SMALL)


def test_promise_14_changed_options_refuse_an_unfinished_folder_too(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 600)
    prepare([str(path)], out=tmp_path / "data", options=SMALL, workers=1, worker="1/2")
    with pytest.raises(ConfigError, match="split_sentences: True -> False"):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(vocab_size=300, split_sentences=False))


def test_a_mended_source_continues_where_it_can(tmp_path: Path) -> None:
    good, vocab = corpora.write_corpus(tmp_path / "a.txt", 600), corpora.write_vocab(tmp_path / "v.txt")
    second = tmp_path / "b.txt"
    second.write_bytes(b"caf\xe9\n")
    sources, out = [str(good), str(second)], tmp_path / "data"
    with pytest.raises(DataError, match=r"b\.txt: byte 4 of line 1"):
        prepare(sources, out=out, vocab=vocab, workers=1)
    second.write_text("café and river\n")
    result = prepare(sources, out=out, vocab=vocab, workers=1)
    assert result.units_kept == result.units - 1
    prepare(sources, out=tmp_path / "fresh", vocab=vocab)
    assert corpora.digests(out) == corpora.digests(tmp_path / "fresh")


@pytest.mark.parametrize("worker", [None, "1/1", "1/2"])
def test_defect_a_corrected_command_may_use_the_folder_of_a_failed_one(tmp_path: Path, worker: str | None) -> None:
    """Finished units of the good file kept the folder for the wrong column."""
    good, rows = corpora.write_corpus(tmp_path / "a.txt", 600), tmp_path / "b.jsonl"
    rows.write_text("".join(json.dumps({"body": "\n".join(lines)}) + "\n" for lines in corpora.documents(50, "b")))
    sources, out = [str(good), str(rows)], tmp_path / "data"
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    with pytest.raises(DataError, match="no column 'text'; found body"):
        prepare(sources, out=out, vocab=vocab, workers=1, worker=worker)
    right = PrepareOptions(text_column="body")
    result = prepare(sources, out=out, vocab=vocab, options=right, workers=1)
    assert result.manifest is not None
    prepare(sources, out=tmp_path / "fresh", vocab=vocab, options=right)
    assert corpora.digests(out) == corpora.digests(tmp_path / "fresh")


def test_defect_a_corpus_without_text_does_not_claim_the_folder(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("...\n\n!\n")
    vocab, good = corpora.write_vocab(tmp_path / "v.txt"), corpora.write_corpus(tmp_path / "a.txt", 60)
    with pytest.raises(DataError, match="no document is left"):
        prepare([str(tmp_path / "empty.txt")], out=tmp_path / "data", vocab=vocab)
    assert prepare([str(good)], out=tmp_path / "data", vocab=vocab).manifest is not None


def test_a_failed_command_with_another_vocabulary_size_leaves_no_vocabulary_behind(tmp_path: Path) -> None:
    good, bad = corpora.write_corpus(tmp_path / "a.txt", 600), tmp_path / "b.jsonl"
    bad.write_text('{"text": 5}\n')
    held = [str(bad)]
    with pytest.raises(DataError, match="'text' is not a text"):
        prepare([str(good)], held_out=held, out=tmp_path / "data", options=SMALL, workers=1)
    prepare([str(good)], out=tmp_path / "data", options=PrepareOptions(vocab_size=200), workers=1)
    assert open_data(tmp_path / "data").vocab_size == 200


def test_a_failing_worker_does_not_take_the_folder_from_the_others(tmp_path: Path) -> None:
    path, out = corpora.write_corpus(tmp_path / "a.txt", 600), tmp_path / "data"
    vocab, bad = corpora.write_vocab(tmp_path / "v.txt"), tmp_path / "b.txt"
    bad.write_bytes(b"caf\xe9 noir\n")
    sources = [str(bad), str(path)]
    (out / ".work").mkdir(parents=True)
    with lock(out / ".work", number=1, total=2), pytest.raises(DataError, match="not valid UTF-8"):
        prepare(sources, out=out, vocab=vocab, workers=1, worker="1/2")
    with pytest.raises(ConfigError, match="min_chars: 5 -> 9"):
        prepare(sources, out=out, vocab=vocab, options=PrepareOptions(min_chars=9), workers=1)


def test_promise_20_other_folders_are_left_alone(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "text" / "a.txt", 20)
    with pytest.raises(ConfigError, match="is not empty and holds no prepared data"):
        prepare([str(path)], out=tmp_path / "text", options=SMALL)
    assert [entry.name for entry in (tmp_path / "text").iterdir()] == ["a.txt"]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 20)
    (tmp_path / "data" / ".work").mkdir(parents=True)
    with lock(tmp_path / "data" / ".work", number=0, total=2):
        with pytest.raises(ConfigError, match="another process is preparing"):
            prepare([str(path)], out=tmp_path / "data", options=SMALL)
        with pytest.raises(ConfigError, match="another process is preparing"):
            prepare([str(path)], out=tmp_path / "data", options=SMALL, worker="1/2")


def test_only_one_worker_writes_the_shards(tmp_path: Path) -> None:
    path, out = corpora.write_corpus(tmp_path / "a.txt", 600), tmp_path / "data"
    prepare([str(path)], out=out, options=SMALL, workers=1, worker="1/2")
    with claim(out / ".work" / "finalise.lock") as mine:
        assert mine
        assert prepare([str(path)], out=out, options=SMALL, workers=1, worker="2/2").manifest is None
    assert prepare([str(path)], out=out, options=SMALL, workers=1, worker="2/2").manifest is not None


# --- held out


def test_held_out_by_hash_is_stable_when_the_corpus_grows(tmp_path: Path) -> None:
    share = PrepareOptions(vocab_size=300, held_out_share=0.1)
    small = corpora.write_corpus(tmp_path / "a.txt", 300, "a")
    more = corpora.write_corpus(tmp_path / "b.txt", 300, "b")
    prepare([str(small)], out=tmp_path / "one", options=share)
    prepare([str(small), str(more)], out=tmp_path / "two", options=share)
    one, two = open_data(tmp_path / "one"), open_data(tmp_path / "two")
    held = set(one.held_out.document_ids.tolist())
    assert 10 < len(held) < 60
    first = held | set(one.train.document_ids.tolist())
    assert held == first & set(two.held_out.document_ids.tolist())


@pytest.mark.parametrize("count", [2, 3, 20, 45])
def test_there_is_always_a_held_out_split(tmp_path: Path, count: int) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", count)
    prepare([str(path)], out=tmp_path / "data", options=SMALL)
    data = open_data(tmp_path / "data")
    assert data.held_out.n_documents >= 1 and data.train.n_documents >= 1
    assert data.held_out.n_documents + data.train.n_documents == count


def test_promise_20_one_document_cannot_be_split(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 1)
    with pytest.raises(DataError, match=r"one document of \d+ tokens cannot be split"):
        prepare([str(path)], out=tmp_path / "data", options=SMALL)


def test_given_held_out_files_win_over_training_text(tmp_path: Path) -> None:
    train, other = corpora.documents(60, "t"), corpora.documents(10, "h")
    (tmp_path / "train.txt").write_text(corpora.text(train[:30] + other[:4] + train[30:] + train[:2]))
    (tmp_path / "held.txt").write_text(corpora.text(other + other[:1]))
    manifest = prepare(
        [str(tmp_path / "train.txt")], out=tmp_path / "data", options=SMALL, held_out=[str(tmp_path / "held.txt")]
    ).manifest
    assert manifest is not None
    data = open_data(tmp_path / "data")
    assert data.held_out.n_documents == 10 and data.train.n_documents == 60
    assert not set(data.held_out.document_ids.tolist()) & set(data.train.document_ids.tolist())
    assert manifest["counters"]["dropped_also_held_out"] == 4
    assert manifest["counters"]["dropped_duplicate"] == 3
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match="no document in the held-out files"):
        held = [str(tmp_path / "empty.txt")]
        prepare([str(tmp_path / "train.txt")], out=tmp_path / "none", options=SMALL, held_out=held)


def test_promise_20_nothing_left_to_train_on(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 20)
    with pytest.raises(DataError, match="no document is left"):
        prepare([str(path)], out=tmp_path / "data", options=SMALL, held_out=[str(path)])


# --- options


def test_sentences_can_stay_whole(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 60)
    prepare([str(path)], out=tmp_path / "split", options=SMALL)
    prepare([str(path)], out=tmp_path / "whole", options=PrepareOptions(vocab_size=300, split_sentences=False))
    split, whole = open_data(tmp_path / "split").train, open_data(tmp_path / "whole").train
    assert split.n_tokens == whole.n_tokens and split.n_sentences > whole.n_sentences
    lines = sum(len(lines) for lines in corpora.documents(60))
    assert whole.n_sentences + open_data(tmp_path / "whole").held_out.n_sentences == lines


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    with open(vocab, "a") as out:
        out.writelines(f"[unused{number}]\n" for number in range(66_000))
        out.write("zzriver\n")
    (tmp_path / "a.txt").write_text(corpora.text([*corpora.documents(30), ["Zzriver zzriver."]]))
    prepare([str(tmp_path / "a.txt")], out=tmp_path / "data", vocab=vocab)
    data = open_data(tmp_path / "data")
    everything = np.concatenate([split.slice(0, split.n_tokens) for split in (data.train, data.held_out)])
    assert data.vocab_size > 1 << 16 and everything.max() == data.vocab_size - 1
    assert (tmp_path / "data/train/00000.tokens").stat().st_size == 4 * data.train.n_tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_share": 0.0}, "--held-out-share"),
        ({"held_out_share": 0.6}, "--held-out-share"),
        ({"min_chars": -1}, "--min-chars"),
        ({"text_column": ""}, "--text-column"),
        ({"vocab_size": 10}, "--vocab-size"),
    ],
)
def test_promise_20_options_that_cannot_work(tmp_path: Path, options: dict[str, object], message: str) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 20)
    with pytest.raises(ConfigError, match=message):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(**options))  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists()


def test_promise_20_workers_that_cannot_work(tmp_path: Path) -> None:
    assert parse_worker(None) == (0, 1) and parse_worker("2/3") == (1, 3)
    for text in ("0/3", "4/3", "2", "a/b", "1/", "-1/2", "²/3"):
        with pytest.raises(ConfigError, match="--worker"):
            parse_worker(text)
    with pytest.raises(ConfigError, match="--workers: 0"):
        prepare(["a.txt"], out=tmp_path / "data", workers=0)
    with pytest.raises(ConfigError, match="nothing to prepare"):
        prepare([], out=tmp_path / "data")
    with pytest.raises(ConfigError, match="only once"):
        prepare(["-"], held_out=["-"], out=tmp_path / "data")


def test_standard_input(tmp_path: Path) -> None:
    text = corpora.text(corpora.documents(60)).encode()
    command = [sys.executable, "-m", "electra", "prepare", "-", "--vocab-size", "300", "--out", str(tmp_path / "data")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, input=text, env=env, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"training" in done.stdout and b"held out" in done.stdout
    (tmp_path / "a.txt").write_bytes(text)
    prepare([str(tmp_path / "a.txt")], out=tmp_path / "file", options=SMALL)
    assert corpora.digests(tmp_path / "data" / "train") == corpora.digests(tmp_path / "file" / "train")
    again = subprocess.run(command, input=text, env=env, capture_output=True, timeout=120)
    assert again.returncode == 0 and b"already prepared" in again.stdout
    changed = subprocess.run(command, input=text + b"more", env=env, capture_output=True, timeout=120)
    assert changed.returncode == 2 and b"source '-' has changed" in changed.stderr
