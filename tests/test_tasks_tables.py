"""Tables as users write them: other separators, encodings and empty cells; broken ones named by file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from electra.errors import DataError
from electra.tasks.rows import Example
from electra.tasks.tables import labels_of, read_table


def test_csv_with_quotes_and_newlines(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes('\ufeffname,body,opinion\r\nx,"one, ""two""\nthree",good\r\n\r\ny,four,bad\r\n'.encode())
    assert read_table(path, text="body", label="opinion", id="name") == [
        Example(id="x", text='one, "two"\nthree', label="good"),
        Example(id="y", text="four", label="bad"),
    ]
    with pytest.raises(DataError, match=r"line 5: label 'bad' is not one of the task's \(known are good\)"):
        read_table(path, text="body", label="opinion", labels=["good"])
    with pytest.raises(
        DataError, match=r"no column 'bodi'; found name, body, opinion \(did you mean 'body'\?\)"
    ) as caught:
        read_table(path, text="bodi")
    assert caught.value.exit_code == 4


def test_defect_a_table_in_another_encoding_gets_advice_that_the_command_has(tmp_path: Path) -> None:
    """It named --encoding, which only `electra prepare` has."""
    path = tmp_path / "latin1.csv"
    path.write_bytes("text,label\nHöhe und Größe,good\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"like windows-1252 \(convert it: iconv -f WINDOWS-1252 -t UTF-8 ") as caught:
        read_table(path, text="text")
    assert "--encoding" not in str(caught.value)
    packed = tmp_path / "latin1.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=r"looks like windows-1252 \(unpack and convert it\)"):
        read_table(packed, text="text")
    path.write_bytes("text,label\nมนุษย์,good\n".encode("tis-620"))
    with pytest.raises(DataError, match=r"is not valid UTF-8 \(save it as UTF-8\)"):
        read_table(path, text="text")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_defect_a_table_in_utf_16_is_read(encoding: str, tmp_path: Path) -> None:
    """It was called binary data."""
    path = tmp_path / "own.csv"
    path.write_bytes("text,label\na long enough text ä,good\n".encode(encoding))
    assert read_table(path, text="text", label="label") == [Example(id="0", text="a long enough text ä", label="good")]


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_defect_a_csv_of_another_separator_is_read(
    separator: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every such file was refused, with hints about other things."""
    path = tmp_path / "own.csv"
    lines = ['"the text, as it is"|label', '"one; two,\tthree ""four""\r\nfive"|good', "six|bad, worse"]
    path.write_bytes("".join(line.replace("|", separator) + "\r\n" for line in lines).encode("utf-8-sig"))
    assert read_table(path, text="the text, as it is", label="label") == [
        Example(id="0", text='one; two,\tthree "four"\r\nfive', label="good"),
        Example(id="1", text="six", label="bad, worse"),
    ]
    assert capsys.readouterr().err == f"{path}: its fields have {name} between them\n"


def test_a_comma_in_the_header_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.csv"
    path.write_text("text;raw,label,a;b\nx;y,good,\n", encoding="utf-8")
    assert read_table(path, text="text;raw", label="label") == [Example(id="0", text="x;y", label="good")]
    path.write_text("text\nx;y\n", encoding="utf-8")
    assert read_table(path, text="text") == [Example(id="0", text="x;y")]
    assert capsys.readouterr().err == ""


def test_tsv_leaves_quotes_alone(tmp_path: Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text('a\tb\tscore\n"x\ty"\t2.5\n\tz\t-1e2\n', encoding="utf-8")
    found = read_table(path, text="a", pair="b", label="score", kind="regress")
    assert found[0] == Example(id="0", text='"x', pair='y"', label=2.5)
    assert found[1].label == -100.0


def test_jsonl_packed_with_lists_numbers_and_truth_values(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl.gz"
    rows = [
        {"text": "a", "tags": ["x", "y", "x"], "n": 3, "ok": True},
        {"text": "b", "tags": [], "n": 12, "ok": False},
        {"text": "c", "tags": "y; z ;", "n": 7, "ok": True},
    ]
    path.write_bytes(gzip.compress("\n\n".join(json.dumps(row) for row in rows).encode()))
    many = read_table(path, text="text", label="tags", kind="multilabel", separator=";")
    assert [one.label for one in many] == [("x", "y"), (), ("y", "z")]
    assert labels_of(many) == ("x", "y", "z")
    numbers = read_table(path, text="text", label="n", id="n")
    assert [one.label for one in numbers] == ["3", "12", "7"] and numbers[1].id == "12"
    assert labels_of(numbers) == ("3", "7", "12")
    assert labels_of(read_table(path, text="text", label="ok")) == ("false", "true")
    assert [one.label for one in read_table(path, text="text", label="n", kind="regress")] == [3.0, 12.0, 7.0]
    assert labels_of(read_table(path, text="text")) == ()


def test_defect_white_space_around_a_label_makes_no_other_class(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("text,label\na,neg\nb,neg \nc, neg\n", encoding="utf-8")
    assert labels_of(read_table(path, text="text", label="label")) == ("neg",)
    (tmp_path / "own.jsonl").write_text('{"text": "a", "label": ["x", " x", " "]}\n', encoding="utf-8")
    many = read_table(tmp_path / "own.jsonl", text="text", label="label", kind="multilabel")
    assert many[0].label == ("x",)


@pytest.mark.parametrize("name", ["own.csv", "own.jsonl", "own.parquet"])
def test_defect_rows_without_text_are_kept_and_counted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty cell was read without a word, and null ended the command without a fix."""
    path = empty_cells(tmp_path / name)
    assert [(one.text, one.pair) for one in read_table(path, text="text", pair="pair")] == [
        ("a", "x"), ("", "x"), ("", ""), ("d", "x"),
    ]  # fmt: skip
    places = ("row 2", "row 3") if name == "own.parquet" else ("line 3", "line 4")
    places = ("line 2", "line 3") if name == "own.jsonl" else places
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: 2 of 4 rows have no text in 'text', the first in {places[0]}",
        f"{path}: 1 of 4 rows have no text in 'pair', the first in {places[1]}",
    ]


@pytest.mark.parametrize("kind", ["classify", "regress", "pairs"])
@pytest.mark.parametrize("name", ["own.csv", "own.jsonl", "own.parquet"])
def test_defect_rows_without_label_are_counted(name: str, kind: str, tmp_path: Path) -> None:
    """The first was named, and the next after that was mended."""
    path = empty_cells(tmp_path / name)
    fix = r"\(label them, or take them out; electra predict needs no labels\)"
    with pytest.raises(DataError, match=rf"2 of 4 rows have no label in 'label', the first in (line|row) \d {fix}"):
        read_table(path, text="text", label="label", kind=kind)  # type: ignore[arg-type]


def empty_cells(path: Path) -> Path:
    """Four rows, of which two have no text, one no second text, and two no label."""
    rows = [("a", "x", "1"), (None, "x", "2"), (None, None, None), ("d", "x", None)]
    table = [dict(zip(("text", "pair", "label"), row, strict=True)) for row in rows]
    if path.suffix == ".csv":
        path.write_text("text,pair,label\n" + "".join(",".join(cell or "" for cell in row) + "\n" for row in rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    return path


def test_half_a_surrogate_pair_does_not_reach_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "a \\ud800 b"}\n{"text": "\\ud83d\\ude00"}\n', encoding="utf-8")
    assert [one.text for one in read_table(path, text="text")] == ["a  b", "\N{GRINNING FACE}"]


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("a.csv", "", "classify", "holds no rows"),
        ("a.csv", "text,label\n", "classify", "holds no rows"),
        ("a.csv", "text,text\na,b\n", "classify", "column 'text' stands twice"),
        ("a.csv", "text,label\na\n", "classify", r"has 1 fields, the header has 2 \(.* separator needs quotes\)"),
        ("a.csv", 'text,label\n"a"b,c\n', "classify", "line 2: "),
        ("a.csv", "text,label\na,b\n", "regress", "line 2: 'label' holds \"b\", not a number"),
        ("a.csv", "text,label\na,inf\n", "regress", "not a number"),
        ("a.tsv", "text\tlabel\na\tb\tc\n", "classify", "line 2 has 3 fields, the header has 2"),
        ("a.jsonl", '{"text": "a"}\n', "classify", "line 1: no column 'label'; found text"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text"\n', "classify", "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "classify", "line 1 is not a JSON object"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', "classify", "'text' holds 3, not text"),
        ("a.jsonl", '{"text": "a", "label": 0.5}\n', "classify", "'label' holds 0.5, not a label"),
        ("a.jsonl", '{"text": "a", "label": true}\n', "regress", "'label' holds true, not a number"),
        ("a.jsonl", '{"text": "a", "label": {"a": 1}}\n', "multilabel", "not a list of labels"),
        ("a.txt", "text\n", "classify", "the name does not say what is in the file"),
    ],
)
def test_broken_tables(tmp_path: Path, name: str, content: str, kind: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, text="text", label="label", kind=kind)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
