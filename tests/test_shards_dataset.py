"""Reading prepared data: several shards as one, dedup over passes, and damage that is noticed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import corpora
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.corpus.text import clean, content_key
from electra.errors import DataError
from electra.shards.build import prepare
from electra.shards.dataset import Split, open_data
from electra.shards.dedup import choose
from electra.shards.format import token_type
from electra.shards.options import PrepareOptions
from electra.shards.units import KEY, Unit
from electra.shards.verification import Background
from electra.shards.writer import SplitWriter


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    path = corpora.write_corpus(folder / "a.txt", 80)
    prepare([str(path)], out=folder / "data", options=PrepareOptions(vocab_size=300), workers=1)
    return folder / "data"


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(prepared, tmp_path / "data")
    return tmp_path / "data"


def some_units(count: int) -> list[Unit]:
    rng = np.random.default_rng(0)
    units = []
    for _ in range(count):
        documents = rng.integers(1, 6)
        in_document = rng.integers(1, 4, documents, np.uint32)
        in_sentence = rng.integers(1, 9, in_document.sum(), np.uint32)
        keys = np.zeros(documents, KEY)
        keys["id"] = rng.integers(0, 1 << 63, documents)
        units.append(Unit(keys, in_document, in_sentence, rng.integers(0, 99, in_sentence.sum()).astype("<u2")))
    return units


def test_several_shards_read_as_one(tmp_path: Path) -> None:
    units = some_units(40)
    with SplitWriter(tmp_path, split="train", shard_tokens=50) as writer:
        for unit in units:
            writer.add(unit, np.ones(len(unit.keys), np.bool_))
    record = writer.totals()
    assert len(record["shards"]) > 5 and len(writer.files) == 3 * len(record["shards"])
    split = Split(tmp_path, record, dtype=np.dtype("<u2"), vocab_size=99)
    tokens = np.concatenate([unit.tokens for unit in units])
    lengths = np.concatenate([unit.sentence_tokens for unit in units])
    counts = np.concatenate([unit.document_sentences for unit in units])
    assert (split.n_tokens, split.n_sentences, split.n_documents) == (len(tokens), len(lengths), len(counts))
    assert np.array_equal(split.sentence_starts, np.cumsum([0, *lengths]))
    assert np.array_equal(split.document_starts, np.cumsum([0, *counts]))
    assert np.array_equal(split.document_ids, np.concatenate([unit.keys["id"] for unit in units]))
    rng = np.random.default_rng(1)
    positions = rng.integers(0, len(tokens), (17, 31))
    gathered = split.gather(positions)
    assert gathered.dtype == np.int32 and np.array_equal(gathered, tokens[positions])
    for _ in range(200):
        start, stop = np.sort(rng.integers(0, len(tokens) + 1, 2)).tolist()
        assert np.array_equal(split.slice(start, stop), tokens[start:stop])
    assert split.slice(0, split.n_tokens).dtype == np.int32


def test_chosen_documents_only(tmp_path: Path) -> None:
    (unit,) = [one for one in some_units(40) if len(one.keys) == 5][:1]
    chosen = np.array([True, False, True, False, False])
    with SplitWriter(tmp_path, split="train") as writer:
        writer.add(unit, chosen)
        writer.add(unit, ~np.ones(5, np.bool_))
    split = Split(tmp_path, writer.totals(), dtype=np.dtype("<u2"), vocab_size=99)
    starts = np.cumsum([0, *unit.sentence_tokens])
    edges = np.cumsum([0, *unit.document_sentences])
    expected = [unit.tokens[starts[edges[n]] : starts[edges[n + 1]]] for n in (0, 2)]
    assert np.array_equal(split.slice(0, split.n_tokens), np.concatenate(expected))
    assert split.document_ids.tolist() == unit.keys["id"][chosen].tolist()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("full", ["00000.tokens", "00000.documents", "00003.sentences"])
def test_a_full_disk_leaves_no_file_open(full: str, tmp_path: Path) -> None:
    (tmp_path / full).symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device"),
        SplitWriter(tmp_path, split="train", shard_tokens=50) as writer,
    ):
        for unit in some_units(40):
            writer.add(unit, np.ones(len(unit.keys), np.bool_))
    links = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not {"/dev/full", *map(str, tmp_path.iterdir())} & {os.readlink(one) for one in links}


def test_gather_takes_any_shape(prepared: Path) -> None:
    split = open_data(prepared).train
    everything = split.slice(0, split.n_tokens)
    for shape in ((), (5,), (2, 3, 4)):
        positions = np.arange(np.prod(shape, dtype=int)).reshape(shape) % split.n_tokens
        assert np.array_equal(split.gather(positions), everything[positions])


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 5), st.integers(1, 70), st.integers(0, 60))
def test_dedup_keeps_the_first_whatever_the_passes(
    values: list[int], batch: int, bucket: int, first_train: int
) -> None:
    keys = np.zeros(len(values), KEY)
    keys["id"] = [value // 2 for value in values]
    keys["rest"] = values
    parts = [keys[start : start + batch] for start in range(0, len(values), batch)]
    choice = choose(lambda: iter(parts), total=len(values), first_train=first_train, bucket=bucket)
    fresh = [at for at, value in enumerate(values) if value not in values[:at]]
    assert np.flatnonzero(choice.keep).tolist() == fresh
    repeated = [at for at in range(len(values)) if at not in fresh]
    also = [at for at in repeated if at >= first_train and values.index(values[at]) < first_train]
    assert (choice.duplicates, choice.also_held_out) == (len(repeated) - len(also), len(also))


def test_token_types() -> None:
    assert token_type(65_536).itemsize == 2 and token_type(65_537).itemsize == 4


# --- damage


def flip(path: Path, at: int, bit: int = 0, *, keep_time: bool = False) -> None:
    """Change one bit, as a disk does that decays (`keep_time`) or a program that writes."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_promise_09_a_flipped_bit_is_found_and_named(data: Path) -> None:
    open_data(data)  # found whole, and remembered
    for path in sorted([*data.glob("*/*"), data / "data.json"]):
        middle = path.stat().st_size // 2
        flip(path, middle)
        with pytest.raises(DataError, match=f"{path.name}: is damaged: its sha256"):
            open_data(data)
        flip(path, middle)
    assert open_data(data).verified, "written to since: hashed again"
    assert not open_data(data).verified, "remembered"


def test_promise_09_a_disk_that_decays_is_noticed_in_the_background(data: Path) -> None:
    """Neither size nor time of the file change: only reading it again tells."""
    open_data(data)
    path = data / "train" / "00000.tokens"
    flip(path, 10, keep_time=True)
    prepared = open_data(data)
    assert not prepared.verified
    background = Background(prepared.sums)
    problem = background.problem(wait=True)
    assert problem is not None and problem.exit_code == 4 and "00000.tokens: is damaged" in str(problem)
    with pytest.raises(DataError, match="is damaged"):
        open_data(data)  # no longer remembered
    flip(path, 10, keep_time=True)
    assert Background(open_data(data).sums).problem(wait=True) is None


def test_a_cache_that_cannot_be_used_only_costs_time(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in ("/dev/null", str(data / "data.json")):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert open_data(data).verified and open_data(data).verified


def test_promise_18_tokens_outside_the_vocabulary_are_refused(data: Path) -> None:
    prepared = open_data(data)
    flip(data / "train" / "00000.tokens", 2 * 5 + 1, bit=7)
    with pytest.raises(DataError, match=r"00000.tokens: holds token \d+ of a vocabulary of 300"):
        prepared.train.gather(np.arange(20))
    with pytest.raises(DataError, match="holds token"):
        prepared.train.slice(0, 20)
    with pytest.raises(DataError, match="holds token"):
        prepared.train.counts()


@pytest.mark.parametrize(
    ("name", "at", "bit"),
    [("sentences", 0, 1), ("sentences", 5, 6), ("sentences", -1, 7), ("documents", 8, 0), ("documents", -1, 7)],
)
def test_promise_18_offsets_out_of_order_are_refused(data: Path, name: str, at: int, bit: int) -> None:
    prepared = open_data(data)
    flip(data / "train" / f"00000.{name}", at, bit)
    with pytest.raises(DataError, match=f"00000.{name}: is damaged: its {name} do not follow one another"):
        assert prepared.train.document_starts is prepared.train.sentence_starts


def test_data_of_before_manifests_is_verified_by_its_own_list(data: Path) -> None:
    (data / "manifest.json").unlink()
    path = data / "held-out" / "00000.tokens"
    flip(path, 0)
    with pytest.raises(DataError, match="00000.tokens: is damaged"):
        open_data(data)
    flip(path, 0)
    assert open_data(data).verified


def test_promise_20_missing_and_short_files(data: Path) -> None:
    path = data / "train" / "00000.tokens"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"00000\.tokens: has \d+ bytes, not the \d+"):
        open_data(data)
    path.unlink()
    with pytest.raises(DataError, match=r"00000\.tokens: is missing"):
        open_data(data)


def test_promise_20_folders_that_are_not_prepared_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no prepared data"):
        open_data(tmp_path / "nothing")
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        open_data(tmp_path)
    (tmp_path / "data.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="is not a manifest"):
        open_data(tmp_path)


@pytest.mark.parametrize(("version", "fix"), [(2, "update Electra"), (0, "prepare the data again"), ("x", "again")])
def test_promise_16_other_format_versions_are_refused(data: Path, version: object, fix: str) -> None:
    manifest = json.loads((data / "data.json").read_text())
    (data / "manifest.json").unlink()
    (data / "data.json").write_text(json.dumps({**manifest, "version": version}))
    with pytest.raises(DataError, match=fix):
        open_data(data)


def test_promise_18_hostile_manifests(data: Path) -> None:
    original = (data / "data.json").read_text()
    (data / "manifest.json").unlink()
    for change in (
        lambda m: m["files"][0].update(path="../../etc/passwd"),
        lambda m: m["files"][0].update(path="/etc/passwd"),
        lambda m: m["splits"]["train"]["shards"][0].update(name="../../../etc/passwd"),
        lambda m: m["splits"]["train"]["shards"][0].update(tokens=10**12),
        lambda m: m.pop("files"),
        lambda m: m.update(splits=[]),
        lambda m: m["tokenizer"].update(vocab_size="many"),
    ):
        manifest = json.loads(original)
        change(manifest)
        (data / "data.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError):
            open_data(data)


def test_another_tokenizer_is_noticed(data: Path) -> None:
    path = data / "tokenizer" / "tokenizer.json"
    prepared = open_data(data)
    path.write_text(path.read_text().replace('"lowercase":false', '"lowercase":true '))
    with pytest.raises(DataError, match="is not the tokenizer that the shards were made with"):
        prepared.tokenizer()


# --- the format does not move

GOLDEN = Path(__file__).parent / "golden" / "data-v1"


def test_promise_16_data_of_version_1_still_loads() -> None:
    data = open_data(GOLDEN)
    assert (data.train.n_documents, data.held_out.n_documents) == (23, 1)
    tokenizer = data.tokenizer()
    first = data.train.slice(*data.train.sentence_starts[:2].tolist())
    assert tokenizer.decode(first.tolist()).replace(" ", "") == clean(
        corpora.sentence("golden", 0, 0, 0)
    ).lower().replace(" ", "")


def test_promise_01_version_1_is_written_byte_for_byte(tmp_path: Path) -> None:
    """The same text gives the bytes that were once written on another machine, which held out another part of it."""
    some = corpora.documents(24, "golden")
    held = {id.item() for id in open_data(GOLDEN).held_out.document_ids}

    def is_held(lines: list[str]) -> bool:
        return int.from_bytes((content_key(map(clean, lines)) or b"")[:8], "little") in held

    (tmp_path / "a.txt").write_text(corpora.text([lines for lines in some if not is_held(lines)]))
    (tmp_path / "held.txt").write_text(corpora.text([lines for lines in some if is_held(lines)]))
    prepare(
        [str(tmp_path / "a.txt")],
        out=tmp_path / "data",
        options=PrepareOptions(strip_accents=True),
        vocab=corpora.write_vocab(tmp_path / "vocab.txt"),
        held_out=[str(tmp_path / "held.txt")],
        workers=1,
    )
    new, old = corpora.digests(tmp_path / "data"), corpora.digests(GOLDEN)
    assert new.keys() == old.keys() | {"manifest.json"}
    for name in old.keys() - {"data.json", "tokenizer/tokenizer.json"}:  # the library may write its file differently
        assert new[name] == old[name], name
