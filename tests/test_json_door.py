"""One door for JSON: what it reads, what it refuses, and that there is no other."""

from __future__ import annotations

import ast
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra import fsio
from electra.errors import CheckpointError, DataError
from electra.jsontext import MAX_DEPTH, MAX_NUMBER, parse_json, parse_row
from electra.records import read_record
from electra.train.loop import Position
from electra.train.metrics_file import MetricsWriter, read_lines

SOURCES = Path(__file__).parents[1] / "src" / "electra"
DOOR = SOURCES / "jsontext.py"
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_NUMBER, MAX_NUMBER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """Fail what has not ended by then, a read of a FIFO too."""

    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still running after {limit} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_promise_18_nothing_else_reads_json() -> None:
    """`json.loads` would take NaN, any depth and any number; the door is the one place that calls a decoder."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Attribute) and node.attr in ("load", "loads", "JSONDecoder", "raw_decode")
            if named and isinstance(node.value, ast.Name) and node.value.id == "json":  # type: ignore[attr-defined]
                found.append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
            if isinstance(node, ast.ImportFrom) and node.module == "json":
                found.append(f"{path.name}:{node.lineno}")
    assert {place.partition(":")[0] for place in found} == {DOOR.name}


@given(VALUES)
def test_what_json_writes_comes_back(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), "\ufeff" + json.dumps(value)):
        assert parse_json(text, where="f") == value
        assert parse_json(text.encode(), where="f") == value
    assert parse_row(json.dumps({"text": value}), where="f", number=1) == {"text": value}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[1,]", "Expecting value"),
        ("[NaN]", "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ("[1e999]", "the number 1e999 is too large"),
        (str(2**63), "the number 9223372036854775808 is too large"),
        (f"[{'9' * 10_000}]", "the number 99999999999999999999... is too large"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' stands twice"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"it is nested more than {MAX_DEPTH} levels deep"),
        ("[" * 100_000, f"it is nested more than {MAX_DEPTH} levels deep"),
        ('{"a":' * 100_000, f"it is nested more than {MAX_DEPTH} levels deep"),
        ('"\\ud800"', "it holds half a surrogate pair"),
        ('{"\\udc00x": 1}', "it holds half a surrogate pair"),
        ('[["ok", "\\uD83D"]]', "it holds half a surrogate pair"),
        (b'"\xff"', "byte 1 is not valid UTF-8"),
        (b'"\xed\xa0\x80"', "byte 1 is not valid UTF-8"),
    ],
)
def test_promise_20_json_that_is_refused_names_file_and_reason(text: str | bytes, reason: str) -> None:
    for error in (DataError, CheckpointError):
        with pytest.raises(error) as caught:
            parse_json(text, where="a/b.json", error=error, fix="fetch it again")
        said = str(caught.value)
        assert said.startswith("a/b.json: cannot be read as JSON: ") and reason in said
        assert said.endswith("(fetch it again)") and "\n" not in said


def test_the_limits_themselves_are_read() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, where="f")
    assert parse_json(f"[{MAX_NUMBER}, {-MAX_NUMBER}, 1.7e308]", where="f") == [MAX_NUMBER, -MAX_NUMBER, 1.7e308]
    assert parse_json('"\\ud83d\\ude00 [[["', where="f") == "\N{GRINNING FACE} [[["
    assert parse_json(json.dumps(["["] * 1000), where="f") == ["["] * 1000


def test_rows_of_text_are_taken_as_people_write_them() -> None:
    row = parse_row(
        '{"n": 1e999, "id": 99999999999999999999, "x": NaN, "text": "a\\ud800b", "n": 1}', where="f", number=3
    )
    assert (row["n"], row["id"], row["text"]) == (1, 99999999999999999999, "ab")
    for line, reason in (("[" * 2000, "line 3 is not JSON: it is nested"), ("[]", "line 3 is not a JSON object")):
        with pytest.raises(DataError, match=reason):
            parse_row(line, where="f", number=3)


def test_promise_18_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path / "fifo", "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path, "is a folder, not a file"),
        (tmp_path / "none", "No such file"),
    ):
        with seconds(5), pytest.raises(DataError, match=f"cannot be read: {reason}"):
            fsio.read_json(path)
    with seconds(5), pytest.raises(OSError, match="is not a regular file"):
        fsio.sha256_file(tmp_path / "fifo")


def test_promise_18_a_file_larger_than_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte of zeros
    with seconds(20), pytest.raises(DataError, match="cannot be read: is larger than 64 MiB"):
        fsio.read_json(path)
    path.write_text("[1, 2]")
    assert fsio.read_json(path, most=6) == [1, 2]
    with pytest.raises(DataError, match="is larger than 5 bytes"):
        fsio.read_json(path, most=5)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Also what is not JSON: a loss that is NaN, a file name that is not UTF-8."""
    fsio.write_json(tmp_path / "f.json", {"loss": float("nan"), "best": (float("inf"), 1.0), "name": "a\udcff"})
    assert fsio.read_json(tmp_path / "f.json") == {"loss": None, "best": [None, 1.0], "name": "a?"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": "3"}, "step is '3', which cannot be"),
        ({"step": True}, "step is 'True', which cannot be"),
        ({"step": 3.0}, "step is '3.0', which cannot be"),
        ({"cursor": None}, "has no 'cursor'"),
        ({"cursor": {"epoch": [], "offset": 0}}, r"cursor.epoch is '\[\]', which cannot be"),
        ({"tokens": None}, "tokens is 'None', which cannot be"),
        ({"total_steps": "many"}, "total_steps is 'many', which cannot be"),
    ],
)
def test_promise_20_a_value_of_the_wrong_type_is_named(change: dict[str, Any], reason: str) -> None:
    state = {"step": 3, "cursor": {"epoch": 0, "offset": 5}, "tokens": 7, "elapsed_s": 1.5, "total_steps": None}
    state["length"] = 64
    assert read_record(Position, state | {"later": 1}, whole=True, where="f") == Position(
        step=3, tokens=7.0, elapsed_s=1.5, cursor=Position().cursor.__class__(0, 5), length=64
    )
    with pytest.raises(CheckpointError, match=f"^state.json: {reason}"):
        read_record(Position, state | change, whole=True, where="state.json", error=CheckpointError)
    del state["cursor"]
    with pytest.raises(DataError, match="has no 'cursor'"):
        read_record(Position, state, whole=True, where="f")


@pytest.mark.parametrize(
    "line", ["5", "[]", '"x"', "{}", '{"kind": "train"}', '{"kind": "train", "step": "1"}', '{"kind": 1, "step": 1}']
)
def test_promise_20_lines_that_are_no_metrics_do_not_stop_a_run(tmp_path: Path, line: str) -> None:
    good = {"kind": "train", "step": 1, "train/loss": 2.5}
    bad = [
        line,
        '{"kind": "train", "step": 1, "train/loss": "low"}',
        '{"kind": "eval", "step": 1, "a": [1]}',
        "[" * 5000,
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*bad, json.dumps(good), *bad, '{"kind": "tra']))
    assert read_lines(tmp_path / "metrics.jsonl") == [good]
    MetricsWriter(tmp_path, step=1).close()
    assert read_lines(tmp_path / "metrics.jsonl") == [good]
