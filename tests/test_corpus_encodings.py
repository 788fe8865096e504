"""Text that is not UTF-8: read where it says what it is, refused by name with a fix that works elsewhere."""

from __future__ import annotations

import gzip
import shlex
import shutil
import subprocess
from pathlib import Path

import corpora
import pytest
from test_corpus_readers import read, source

from electra.corpus.blocks import Blocks
from electra.corpus.documents import Tally, documents
from electra.corpus.encodings import guess
from electra.errors import ConfigError, DataError
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions

TEXTS = {
    "windows-1252": "Die Würde des Menschen ist unantastbar. – Das „Grundgesetz“ schützt sie.\nÀ bientôt, dit-il.",
    "windows-1251": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "koi8-r": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "cp932": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc_jp": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "gb18030": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "big5": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。",
    "cp949": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}
"""The first article of the Universal Declaration of Human Rights, mostly."""


SHORT = [
    ("windows-1252", "Höhe und Größe sind schön"),
    ("windows-1252", "Cœur élevé, créée, année"),
    ("windows-1252", "¿Qué pasó? ¡Olé!"),
    ("windows-1252", "På øen æder åen ål"),
    ("windows-1252", "12 m³ bei 20°"),
    ("windows-1252", "é"),
    ("iso-8859-2", "Zażółć gęślą jaźń, bo był dobrą książką"),
    ("windows-1250", "Zażółć gęślą jaźń, bo był dobrą książką"),
    ("windows-1251", "text,label\nочень хорошо,pos\n"),
    ("windows-1251", "<li><a href='reviews/1.html'>это хорошо</a></li>"),
    ("koi8-r", "text,label\nочень хорошо,pos\n"),
]


def read_as(path: Path, encoding: str | None) -> list[list[str]]:
    blocks = Blocks(source(path), text_column="text", encoding=encoding)
    return [lines for block in blocks for lines in documents(block, text_column="text", tally=Tally())]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_marked_text_and_utf_16_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    some = corpora.documents(40)
    path.write_bytes(corpora.text(some).encode(encoding))
    (tmp_path / "b.txt").write_text(corpora.text(some))
    assert read(path) == read(tmp_path / "b.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read(tmp_path / "a.txt.gz") == read(tmp_path / "b.txt")


@pytest.mark.parametrize("encoding", TEXTS)
def test_defect_other_text_is_refused_with_fixes_that_work(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "an old file.txt"
    path.write_bytes(TEXTS[encoding].encode(encoding) * 3)
    with pytest.raises(DataError, match=f"is not valid UTF-8; it looks like {encoding} ") as caught:
        read(path)
    expected = [(TEXTS[encoding] * 3).split("\n")]
    assert f"(--encoding {encoding}, or" in str(caught.value)
    assert read_as(path, encoding) == expected
    if shutil.which("iconv") is None:
        pytest.skip("needs iconv")
    command = str(caught.value).partition("convert it: ")[2].removesuffix(")")
    subprocess.run(command, shell=True, check=True, timeout=60)
    assert read(Path(shlex.split(command)[-1])) == expected


@pytest.mark.parametrize(("encoding", "text"), SHORT)
def test_defect_a_line_of_accents_is_not_taken_for_cyrillic(encoding: str, text: str) -> None:
    assert guess(text.encode(encoding)) == encoding


def test_a_few_damaged_bytes_are_not_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXTS["cp949"].encode() + b"\n\xff\n" + TEXTS["gb18030"].encode())
    with pytest.raises(DataError, match=r"byte 1 of line 2 \(0xff\) is not valid UTF-8, the rest is") as caught:
        read(path)
    command = str(caught.value).partition("bytes: ")[2].removesuffix(")")
    if shutil.which("iconv") is None:
        pytest.skip("needs iconv")
    subprocess.run(command, shell=True, check=False, timeout=60)  # it returns 1 where it dropped something
    assert read(Path(shlex.split(command)[-1])) == [[TEXTS["cp949"]], [TEXTS["gb18030"]]]


def test_unknown_and_packed_text_gets_no_command(tmp_path: Path) -> None:
    thai = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ"
    assert guess(thai.encode("tis-620")) is None
    path = tmp_path / "a.txt"
    path.write_bytes(thai.encode("tis-620"))
    with pytest.raises(DataError, match=r"not valid UTF-8 \(--encoding NAME"):
        read(path)
    assert read_as(path, "tis-620") == [[thai]]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(TEXTS["cp932"].encode("cp932")))
    with pytest.raises(DataError, match=r"\(--encoding cp932\)"):
        read(packed)


def test_half_a_character_of_marked_text(tmp_path: Path) -> None:
    """The mark wins over --encoding, so the fix does not name it."""
    path = tmp_path / "a.txt"
    path.write_bytes("a text".encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"is not utf-16-le text: .* \(save it as UTF-8\)"):
        read_as(path, None)


def test_a_wrong_name_and_a_wrong_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXTS["windows-1252"].encode("windows-1252"))
    with pytest.raises(ConfigError, match="--encoding: 'klingon' is not known"):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(encoding="klingon"))
    with pytest.raises(ConfigError, match="--encoding: 'hex' is not known"):
        prepare([str(path)], out=tmp_path / "data", options=PrepareOptions(encoding="hex"))
    with pytest.raises(DataError, match=r"a\.txt: is not ascii text"):
        read_as(path, "ascii")


def test_prepare_reads_the_encoding_that_is_named(tmp_path: Path) -> None:
    """The same shards as from UTF-8; a file with a byte order mark keeps its own encoding."""
    some = [line for line in corpora.text(corpora.documents(60)).split("\n") if line.isascii() or "é" in line]
    text = "\n\n".join(line.encode("latin-1", "ignore").decode("latin-1") for line in some)
    for place, first, second in (("old", "latin-1", "utf-16"), ("new", "utf-8", "utf-8")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_bytes(text.encode(first))
        (tmp_path / place / "b.txt").write_bytes(corpora.text(corpora.documents(30, "b")).encode(second))
    named = PrepareOptions(vocab_size=300, encoding="latin-1")
    prepare([str(tmp_path / "old")], out=tmp_path / "from-old", options=named)
    prepare([str(tmp_path / "new")], out=tmp_path / "from-new", options=PrepareOptions(vocab_size=300))
    for part in ("train", "held-out", "tokenizer"):
        assert corpora.digests(tmp_path / "from-old" / part) == corpora.digests(tmp_path / "from-new" / part)
    assert open_data(tmp_path / "from-old").manifest["options"]["encoding"] == "latin-1"
    assert "encoding" not in open_data(tmp_path / "from-new").manifest["options"], "older folders have no such key"
