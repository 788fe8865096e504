"""Columns that are named, that have their usual names, or that are obvious; tables of every format."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from electra.errors import DataError
from electra.tasks.columns import Columns, find_columns, unread_texts
from electra.tasks.rows import Kind
from electra.tasks.table_rows import table_rows
from electra.tasks.tables import read_table


def table(path: Path, **columns: list[Any]) -> Path:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            writer.writerows(rows)
    return path


TEXTS = [f"the dog number {at} sat on the mat" for at in range(12)]
CLASSES = ["good", "bad", "fair"] * 4


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ({"text": TEXTS, "label": CLASSES}, "text", "label"),
        ({"review": TEXTS, "verdict": CLASSES}, "review", "verdict"),
        ({"Sentence": TEXTS, "Category": CLASSES, "n": list(range(12))}, "Sentence", "Category"),
        ({"id": list(range(12)), "what_they_wrote": TEXTS, "opinion": CLASSES}, "what_they_wrote", "opinion"),
        ({"opinion": CLASSES, "text": TEXTS, "title": TEXTS}, "text", "opinion"),
    ],
)
def test_columns_are_found(columns: dict[str, list[Any]], text: str, label: str, tmp_path: Path) -> None:
    found = find_columns(table(tmp_path / "rows.csv", **columns), Columns(), kind="classify")
    assert (found.text, found.label) == (text, label)


@pytest.mark.parametrize(
    ("names", "asked", "text", "pair", "unread"),
    [
        (("text", "pair"), Columns(), "text", "pair", []),
        (("premise", "hypothesis"), Columns(), "premise", "hypothesis", []),
        (("text_a", "text_b"), Columns(text="text_a"), "text_a", None, ["text_b"]),
        (("question", "answer"), Columns(pair="question", text="answer"), "answer", "question", []),
        (("text", "title"), Columns(), "text", None, ["title"]),
    ],
)
def test_defect_a_second_text_is_read_or_named(
    names: tuple[str, str], asked: Columns, text: str, pair: str | None, unread: list[str], tmp_path: Path
) -> None:
    """Of a table with the columns `text`, `pair` and `score` the second text was left out without a word."""
    path = table(tmp_path / "rows.csv", **dict.fromkeys(names, TEXTS), label=CLASSES)
    found = find_columns(path, asked, kind="classify")
    assert (found.text, found.pair, found.label) == (text, pair, "label")
    assert unread_texts(path, found) == unread


def test_a_column_of_answers_that_repeat_is_the_label_and_no_text(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv", question=TEXTS, answer=CLASSES)
    found = find_columns(path, Columns(), kind="classify")
    assert (found.text, found.pair, found.label) == ("question", None, "answer")


def test_named_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv", text=TEXTS, review=TEXTS, label=CLASSES, verdict=CLASSES)
    found = find_columns(path, Columns(text="review", pair="text"), kind="classify")
    assert (found.text, found.pair, found.label) == ("review", "text", "label")
    numbers = table(tmp_path / "numbers.jsonl", what=TEXTS, size=[at / 3 for at in range(12)])
    assert find_columns(numbers, Columns(), kind="regress").label == "size"


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("classify", Columns(text="text", label="text"), r"column 'text' is named twice, by --text and --label"),
        ("classify", Columns(text="text", pair="text", label="label"), "by --text and --pair"),
        ("pairs", Columns(text="a", pair="b", label="b"), "by --pair and --score"),
    ],
)
def test_one_column_is_no_two(kind: Kind, columns: Columns, message: str, tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv", text=TEXTS, label=CLASSES)
    with pytest.raises(DataError, match=message):
        find_columns(path, columns, kind=kind)


def test_null_in_a_column_of_texts_is_an_empty_one(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.jsonl", what=[None, *TEXTS[1:]], opinion=CLASSES)
    assert find_columns(path, Columns(), kind="classify").text == "what"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"Kunden Text ": TEXTS, "Bewertung (1-2)": range(12)},
            "it is not clear which column holds the label; found 'Kunden Text ', 'Bewertung (1-2)' "
            "(for example --label 'Bewertung (1-2)')",
        ),
        (
            {"one": TEXTS, "two": TEXTS, "label": CLASSES},
            "it is not clear which column holds the text; found one, two, label (for example --text one)",
        ),
        (
            {"n": range(12), "a": TEXTS, "b": TEXTS},
            "it is not clear which column holds the text and which the label; found n, a, b "
            "(for example --text a --label n)",
        ),
        (
            {"review": TEXTS},
            "has no column for the label; found review (every row needs both, in columns of their own)",
        ),
    ],
)
def test_defect_nothing_obvious_is_a_line_to_type(columns: dict[str, list[Any]], message: str, tmp_path: Path) -> None:
    """It announced that it reads 'label', of which there is none, and then that there is none."""
    path = table(tmp_path / "rows.csv", **columns)
    with pytest.raises(DataError) as caught:
        find_columns(path, Columns(), kind="classify")
    assert str(caught.value) == f"{path}: {message}"


def test_names_are_quoted_as_a_shell_needs_them(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv", **{"Kunden Text ": TEXTS, "label": CLASSES})
    with pytest.raises(DataError, match=r"line 2: no column 'text'; found 'Kunden Text ', label \(name one of these"):
        read_table(path, text="text", label="label")


def test_parquet_is_read_as_the_others(tmp_path: Path) -> None:
    whole = {"text": TEXTS, "label": CLASSES, "n": list(range(12))}
    wanted = read_table(table(tmp_path / "rows.csv", **whole), text="text", label="label", id="n")
    assert read_table(table(tmp_path / "rows.parquet", **whole), text="text", label="label", id="n") == wanted
    assert [row.place for row in table_rows(tmp_path / "rows.parquet")][:2] == ["row 1", "row 2"]
    with pytest.raises(DataError, match="row 1: 'n' holds 0, not text"):
        read_table(tmp_path / "rows.parquet", text="n")


def test_parquet_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="rows.parquet: cannot be read as Parquet"):
        read_table(tmp_path / "rows.parquet", text="text")
