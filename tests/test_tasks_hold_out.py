"""Rows held out of one file: every class by its share, equal texts on one side, the same for the same file and seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import task_files
from hypothesis import given
from hypothesis import strategies as st
from tiny_tuning import PLAIN, tiny_base

from electra.errors import DataError
from electra.tasks.hold_out import hold_out_examples, usual_share
from electra.tasks.rows import Example
from electra.tasks.task_data import load_questions, load_tagging

TOKENIZER = tiny_base().tokenizer


def made(labels: list[str]) -> list[Example]:
    return [Example(id=str(at), text=f"text {at}", label=label) for at, label in enumerate(labels)]


def split(rows: list[Example], *, share: float = 0.0, seed: int = 0) -> tuple[list[Example], list[Example]]:
    return hold_out_examples(rows, kind="classify", share=share, seed=seed, where="rows.csv")


def test_shares_of_classes_by_hand() -> None:
    train, dev = split(made(["a"] * 70 + ["b"] * 25 + ["c"] * 5))
    assert Counter(one.label for one in dev) == {"a": 14, "b": 5, "c": 1}
    assert Counter(one.label for one in train) == {"a": 56, "b": 20, "c": 4}
    assert [int(one.id) for one in dev] == sorted(int(one.id) for one in dev), "in the order of the file"


@given(st.lists(st.sampled_from("aaaabbc"), min_size=12, max_size=80), st.integers(0, 9), st.sampled_from([0.0, 0.3]))
def test_nothing_is_lost_and_no_class_leaves_training(labels: list[str], seed: int, share: float) -> None:
    rows = made(labels)
    train, dev = split(rows, share=share, seed=seed)
    assert sorted([*train, *dev], key=lambda one: int(one.id)) == rows
    assert {one.label for one in train} == {*labels}
    whole, held = Counter(labels), Counter(one.label for one in dev)
    part = share or usual_share(len(labels))
    for label, count in whole.items():
        assert abs(held[label] - part * count) < 1.5, "one by rounding, half by rounding their sum"
    assert split(rows, share=share, seed=seed) == (train, dev)


def test_another_seed_holds_out_other_rows() -> None:
    rows = made(["a", "b"] * 50)
    assert split(rows, seed=0)[1] != split(rows, seed=1)[1]


def test_equal_texts_stay_together() -> None:
    rows = [Example(id=str(at), text=f"text {at // 3}", label="ab"[at // 3 % 2]) for at in range(90)]
    train, dev = split(rows)
    assert dev and not {one.text for one in train} & {one.text for one in dev}


@pytest.mark.parametrize(("rows", "held"), [(10, 2), (200, 40), (400, 50), (1000, 100), (5000, 500), (200_000, 10_000)])
def test_how_many_rows(rows: int, held: int) -> None:
    assert usual_share(rows) * rows == pytest.approx(held)


def test_too_few_rows_are_one_line() -> None:
    with pytest.raises(DataError, match=r"rows.csv: 2 rows with 2 different texts are too few to hold some out \("):
        split(made(["a", "b"]))
    with pytest.raises(DataError, match=r"rows.csv: 80 rows with 1 different text are too few to hold some out \("):
        split([Example(id=str(at), text="the same", label="ab"[at % 2]) for at in range(80)])


def test_numbers_and_several_labels_have_strata_too() -> None:
    rows = [Example(id=str(at), text=str(at), label=float(at % 10)) for at in range(100)]
    _, dev = hold_out_examples(rows, kind="regress", share=0.2, seed=0, where="")
    low = sum(one.label < 5 for one in dev)  # type: ignore[operator]
    assert len(dev) == 20 and 8 <= low <= 12
    tags = [("a",), ("a", "b"), ("a", "c"), ()]
    rows = [Example(id=str(at), text=str(at), label=tags[at % 4]) for at in range(80)]
    _, dev = hold_out_examples(rows, kind="multilabel", share=0.25, seed=0, where="")
    assert Counter(one.label for one in dev) == dict.fromkeys(tags, 5)


def test_one_file_of_tags_and_one_of_questions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [[(word, "B-WHO"), ("sat", "O")] for word in ("dog", "cat", "chef", "money", "mat") for _ in range(2)]
    path = task_files.conll(tmp_path / "all.conll", words)
    data = load_tagging("tag", {"train": path}, tokenizer=TOKENIZER, config=PLAIN)
    assert data.held_out and data.rows == {"train": 8, "dev": 2}
    assert f"{path}: 8 rows to train on, 2 held out" in capfd.readouterr().err
    asked = task_files.squad(tmp_path / "all.json", 20)
    questions = load_questions("mine", {"train": asked}, tokenizer=TOKENIZER, config=replace(PLAIN, max_query=8))
    assert questions.held_out and questions.rows == {"train": 16, "dev": 4}
