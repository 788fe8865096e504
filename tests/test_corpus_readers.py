"""Every format and compression gives the same documents; every damaged file is one line that names it."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import corpora
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from electra.corpus.blocks import MAX_LINE_BYTES, Block, Blocks
from electra.corpus.documents import MAX_DOCUMENT_CHARS, Tally, documents
from electra.corpus.sample import sample
from electra.corpus.sources import Source, file_format, parse_hub, resolve
from electra.corpus.text import clean
from electra.errors import ConfigError, DataError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
BOMBS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
}
DOCUMENTS = corpora.documents(60)


def as_txt(some: list[list[str]]) -> bytes:
    return corpora.text(some).encode()


def as_jsonl(some: list[list[str]]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": "\n".join(lines)}) + "\n" for lines in some).encode()


def as_csv(some: list[list[str]]) -> bytes:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["id", "text", "note"])
    table.writerows([number, "\n".join(lines), 'a "quoted", note'] for number, lines in enumerate(some))
    return out.getvalue().encode()


def as_parquet(some: list[list[str]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(some)), "text": ["\n".join(lines) for lines in some]}), out)
    return out.getvalue()


WRITE = {".txt": as_txt, ".jsonl": as_jsonl, ".csv": as_csv, ".parquet": as_parquet}


def source(path: Path) -> Source:
    kind = file_format(path)
    assert kind
    return Source(name=path.name, path=path, format=kind)


def read(path: Path, *, block_bytes: int = 4096, column: str = "text") -> list[list[str]]:
    blocks = Blocks(source(path), text_column=column, block_bytes=block_bytes)
    return [lines for block in blocks for lines in documents(block, text_column=column, tally=Tally())]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", WRITE)
def test_formats_and_compressions_agree(tmp_path: Path, kind: str, packing: str) -> None:
    path = tmp_path / f"corpus{kind}{packing}"
    path.write_bytes(PACK[packing](WRITE[kind](DOCUMENTS)))
    expected = [[clean(line) for line in lines] for lines in DOCUMENTS]
    assert read(path) == expected
    assert read(path, block_bytes=1 << 20) == expected


@pytest.mark.parametrize("kind", WRITE)
def test_blocks_are_bounded_and_position_and_digest_follow(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"corpus{kind}"
    path.write_bytes(WRITE[kind](corpora.documents(400)))
    blocks = Blocks(source(path), text_column="text", block_bytes=10_000)
    sizes = [len(block.payload) for block in blocks]
    assert len(sizes) > 3 and max(sizes) < 25_000
    assert blocks.position == path.stat().st_size
    assert blocks.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_give_the_blocks_of_commas(tmp_path: Path, separator: str, packing: str) -> None:
    """Fields with line ends, quotes and all separators in them; blocks of a few hundred bytes cut anywhere."""

    def blocks(separator: str) -> list[tuple[int, bytes]]:
        out = io.StringIO()
        table = csv.writer(out, delimiter=separator, quoting=csv.QUOTE_ALL)
        table.writerow(["id", "a, b; c", "text"])
        table.writerows([at, "x;y\tz", "\n".join([*lines, 'a "b"; c,\td'])] for at, lines in enumerate(DOCUMENTS))
        path = tmp_path / f"{ord(separator)}.csv{packing}"
        path.write_bytes(PACK[packing](out.getvalue().encode()))
        found = Blocks(source(path), text_column="text", block_bytes=500)
        content = [(block.line, block.payload) for block in found]
        assert found.separator == separator
        return content

    assert blocks(separator) == blocks(",")
    assert len(blocks(separator)) > 5


def test_a_quoted_comma_in_the_header_is_no_separator(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'"name, first";text\r\nx;"One; two."\r\n')
    assert read(path) == [["One; two."]]
    path.write_bytes(b"name;note,text\nx;y,One; two.\n")
    assert read(path) == [["One; two."]]
    path.write_bytes(b"text\nOne; two.\n")
    assert read(path) == [["One; two."]]


@pytest.mark.parametrize("packing", PACK)
def test_tsv_has_ordinary_quotes(tmp_path: Path, packing: str) -> None:
    lines = [" ".join(document) for document in DOCUMENTS] + ['"Never closed.', 'A "quoted" word, a;b.']
    path = tmp_path / f"a.tsv{packing}"
    path.write_bytes(
        PACK[packing]("".join(f"{line}\r\n" for line in ["a,b\ttext", *(f"0\t{x}" for x in lines)]).encode())
    )
    for block_bytes in (300, 1 << 20):
        assert read(path, block_bytes=block_bytes) == [[clean(line)] for line in lines]
    with pytest.raises(DataError, match="no column 'body'; found a,b, text"):
        read(path, column="body")


def test_txt_conventions(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(
        "\ufeffFirst line.\r\nSecond line.\r\n\r\n \t \nNext document\n\n\n\nlast, without newline".encode()
    )
    assert read(path) == [["First line.", "Second line."], ["Next document"], ["last, without newline"]]


def test_several_streams_in_one_file_and_padding(tmp_path: Path) -> None:
    parts = as_txt(DOCUMENTS)[:50], as_txt(DOCUMENTS)[50:]
    for packing in (".gz", ".bz2", ".xz", ".zst"):
        path = tmp_path / f"a.txt{packing}"
        path.write_bytes(b"".join(PACK[packing](part) for part in parts) + (b"\0" * 8 if packing == ".xz" else b""))
        assert read(path) == read_plain(tmp_path, as_txt(DOCUMENTS))


def read_plain(folder: Path, content: bytes) -> list[list[str]]:
    path = folder / "plain.txt"
    path.write_bytes(content)
    return read(path)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_promise_20_truncated_archives_are_named(tmp_path: Path, packing: str, kind: str) -> None:
    path = tmp_path / f"cut{kind}{packing}"
    packed = PACK[packing](WRITE[kind](DOCUMENTS))
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(DataError, match=f"cut{kind}{packing}: .*too early"):
        read(path)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
def test_promise_20_not_an_archive(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"not.txt{packing}"
    path.write_bytes(b"this is plain text\n" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
def test_promise_18_bombs_stay_bounded(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"bomb.txt{packing}"
    pack = BOMBS.get(packing, PACK[packing])
    path.write_bytes(pack(b"a" * (100 << 20)))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"line 1 is longer than 16 MiB"):
            read(path, block_bytes=4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()


def test_promise_18_a_200_mb_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with open(path, "wb") as out:
        out.write(b"Short.\n\nAlso short.\n")
        for _ in range(200):
            out.write(b"x" * 1_000_000)
    with pytest.raises(DataError, match=r"long\.txt: line 4 is longer than 16 MiB"):
        read(path, block_bytes=4 << 20)


def test_a_line_just_over_the_limit_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"y" * (MAX_LINE_BYTES + 1) + b"\n")
    with pytest.raises(DataError, match="line 2 is longer"):
        read(path, block_bytes=4 << 20)


def test_promise_20_binary_and_invalid_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"Fine.\n\nAlso fine.\nELF\x00\x01\x02\n")
    with pytest.raises(DataError, match=r"a\.txt: line 4 holds a NUL byte"):
        read(path)
    path.write_bytes("Fine.\nGrüße\n".encode() + b"caf\xe9 noir\n")
    with pytest.raises(DataError, match=r"byte 4 of line 3 \(0xe9\) is not valid UTF-8"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"id,body\n1,Hello\n", "no column 'text'; found id, body"),
        ("a.csv", b'id,text\n1,"never closed' + b"x" * (17 << 20), "longer than 16 MiB"),
        ("a.csv", b'id,text\n1,"never closed\n' + b"x\n" * (9 << 20), "field larger than field limit"),
        ("a.csv", b"id,text\n1,caf\xe9\n", "line 2 .*not valid UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b", "id": 2}\n', "line 2: no column 'text'; found body, id"),
        ("a.jsonl", b'{"text": "a"}\n\n{broken\n', "line 3 is not JSON"),
        ("a.jsonl", b"[1, 2]\n", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: 'text' is not a text"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("a.jsonl", b'{"text": ' + b"1" * 5000 + b"}\n", "line 1 is not JSON"),
        ("a.parquet", b"PAR1 not really", "cannot be read as Parquet"),
        ("a.parquet", b"", "cannot be read as Parquet"),
    ],
)
def test_promise_20_damaged_tables(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read(path, block_bytes=4 << 20)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["a.parquet.gz", "a.txt.gz"])
def test_a_file_that_cannot_be_unpacked_is_closed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.write_bytes(gzip.compress(b"PAR1" * 1000)[:-20])
    with pytest.raises(DataError, match="ends too early") as caught:  # whose frames still hold what they opened
        list(Blocks(Source(name=kind, path=path, format=file_format(path) or ""), text_column="text"))
    held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert str(path) not in held and caught.tb is not None


def test_parquet_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["One.", None, "Two\0."], "n": [1, 2, 3]}), path)
    with pytest.raises(DataError, match="no column 'text'; found body, n"):
        read(path)
    with pytest.raises(DataError, match="column 'n' holds int64, not text"):
        read(path, column="n")
    assert read(path, column="body") == [["One."], ["Two ."]]


def test_empty_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": ""}\n{"text": "\\n \\n"}\n{"text": "Yes, \\ud800 text."}\n')
    tally = Tally()
    (block,) = Blocks(source(path), text_column="text")
    assert list(documents(block, text_column="text", tally=tally)) == [["Yes, text."]]
    assert (tally.read, tally.short, tally.cut) == (4, 3, 0)


def test_a_file_without_blank_lines_is_many_documents() -> None:
    line = "word " * 2000
    payload = (line + "\n").encode() * (3 * MAX_DOCUMENT_CHARS // len(line))
    tally = Tally()
    found = list(documents(Block(source="x", kind="paragraphs", line=1, payload=payload), text_column="", tally=tally))
    assert len(found) == 3 and tally.cut == 2
    assert sum(map(len, found)) == payload.count(b"\n")


@given(st.binary(max_size=400), st.integers(1, 64))
def test_promise_18_any_bytes_give_documents_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, block: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for kind in (".txt", ".md", ".html", ".jsonl", ".csv", ".tsv", ".txt.gz", ".txt.zst", ".txt.xz"):
        path = folder / f"a{kind}"
        path.write_bytes(raw)
        try:
            for lines in read(path, block_bytes=block):
                assert lines and all(clean(line) == line for line in lines)
        except DataError as error:
            assert str(path) in str(error)


def test_promise_18_blocks_do_not_change_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(as_txt(DOCUMENTS).replace(b"\n", b"\r\n"))
    whole = read(path, block_bytes=1 << 20)
    longest = max(len("\r\n".join(lines).encode()) for lines in DOCUMENTS)
    for block_bytes in (longest + 10, 2000, 5000):
        assert read(path, block_bytes=block_bytes) == whole


# --- what the user names


def test_folders_globs_and_files(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a/z.jsonl",
        "a/c.txt.gz",
        ".hidden/x.txt",
        "a/.y.txt",
        "note.pdf",
        "out/tokenizer/vocab.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    def names(*given: str) -> list[str]:
        found = resolve(given, spool=tmp_path / "spool", text_column="text", skip=tmp_path / "out")
        return [one.name for one in found]

    assert names(str(tmp_path)) == ["a/c.txt.gz", "a/z.jsonl", "b.txt"]
    assert names(str(tmp_path / "*.txt"), str(tmp_path / "a")) == ["b.txt", "c.txt.gz", "z.jsonl"]
    assert names(str(tmp_path / "**/*.jsonl")) == ["z.jsonl"]
    for name, message in [
        ("nothing.txt", "no such file"),
        ("*.csv", "no file matches"),
        ("note.pdf", "does not say what is in the file"),
    ]:
        with pytest.raises(DataError, match=message):
            names(str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text in this folder"):
        names(str(tmp_path / "empty"))
    (tmp_path / "empty" / "a.txt").symlink_to("nowhere")
    with pytest.raises(
        DataError, match=r"a\.txt: is a link to nowhere, which is not there \(mend or remove the link\)"
    ):
        names(str(tmp_path / "empty"))
    (tmp_path / "empty" / "a.txt").unlink()
    os.mkfifo(tmp_path / "empty" / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: is not a file \(take it out\)"):
        names(str(tmp_path / "empty"))


def test_a_file_without_the_right_to_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(DataError, match=r"a\.txt: may not be read \(give yourself the right to"):
        resolve([str(tmp_path / "a.txt")], spool=tmp_path / "spool", text_column="text")


def test_a_linked_folder_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "far away").mkdir()
    (tmp_path / "far away" / "b.txt").write_text("b")
    (tmp_path / "texts").mkdir()
    link = tmp_path / "texts" / "far away"
    link.symlink_to("../far away")

    def names(*given: Path) -> list[str]:
        return [one.name for one in resolve([str(one) for one in given], spool=tmp_path / "spool", text_column="text")]

    fix = re.escape(f"(links to folders are not followed: name '{link}')")
    with pytest.raises(DataError, match=f"texts: no text in this folder; .*{fix}"):
        names(tmp_path / "texts")
    (tmp_path / "texts" / "a.txt").write_text("a")
    assert names(tmp_path / "texts") == ["a.txt"]
    assert (
        f"1 linked folder left out (name what you want of it as a source of its own): '{link}'"
        in capsys.readouterr().err
    )
    assert names(tmp_path / "texts", link) == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("hf:wikitext", ("wikitext", None, "train")),
        ("hf:wikitext:wikitext-2-raw-v1", ("wikitext", "wikitext-2-raw-v1", "train")),
        ("hf:wikitext:wikitext-2-raw-v1/test", ("wikitext", "wikitext-2-raw-v1", "test")),
        ("hf:owner/name", ("owner/name", None, "train")),
        ("hf:owner/name/validation", ("owner/name", None, "validation")),
        ("hf:owner/name/special", ("owner/name", None, "special")),
        ("hf:owner/name:cfg/special", ("owner/name", "cfg", "special")),
        ("hf:ag_news/test", ("ag_news", None, "test")),
        ("hf:./folder/data", ("./folder/data", None, "train")),
    ],
)
def test_hub_names(name: str, parsed: tuple[str, str | None, str]) -> None:
    assert parse_hub(name) == parsed


def test_hub_without_a_name() -> None:
    with pytest.raises(ConfigError, match="names no data set"):
        parse_hub("hf:")


def test_hub_data_sets_are_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(as_jsonl(DOCUMENTS))
    spool = tmp_path / "spool"
    (found,) = resolve([f"hf:{folder}"], spool=spool, text_column="text")
    assert read(found.path) == [[clean(line) for line in lines] for lines in DOCUMENTS]
    with pytest.raises(DataError, match="no column 'body'; found id, text"):
        resolve([f"hf:{folder}"], spool=tmp_path / "other", text_column="body")
    with pytest.raises(DataError, match="cannot be loaded"):
        resolve([f"hf:{tmp_path}/nothing-here"], spool=spool, text_column="text")


@pytest.mark.parametrize(
    ("name", "package", "what"), [("a.txt.zst", "zstandard", ".zst files"), ("a.parquet", "pyarrow", "Parquet")]
)
def test_promise_20_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, what: str
) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"reading {what} needs: \S+ -m pip install 'electra\[data\]'"):
        read(tmp_path / name)


def test_promise_20_hub_data_needs_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="reading hub data sets needs"):
        resolve(["hf:wikitext"], spool=tmp_path, text_column="text")


def test_promise_20_a_source_that_vanished(tmp_path: Path) -> None:
    gone = Source(name="a.txt", path=tmp_path / "a.txt", format=".txt")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        list(Blocks(gone, text_column="text"))


# --- the sample that a vocabulary is trained on


def test_the_sample_is_bounded_spread_and_repeatable(tmp_path: Path) -> None:
    paths = [corpora.write_corpus(tmp_path / f"{number}.txt", 4000, number) for number in range(2)]
    sources = [source(path) for path in paths]
    size = sum(path.stat().st_size for path in paths)
    everything = sample(sources, text_column="text")
    assert sum(len(block.payload) for block in everything.blocks) == size
    part = sample(sources, text_column="text", limit=size // 3)
    assert size // 7 < sum(len(block.payload) for block in part.blocks) <= size // 3
    assert {block.source for block in part.blocks} == {str(path) for path in paths}
    assert part == sample(sources, text_column="text", limit=size // 3)
    assert list(part.lines(text_column="text"))
