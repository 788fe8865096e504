"""The gate on raise lines sees what it must: lines, who reaches them, and a list that holds nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import raise_lines

from electra.config.load import load
from electra.errors import ConfigError, Resumable

MODULE = """
def a(error):
    raise ConfigError("a", "b")
def b(self, error, newer):
    raise (newer or error)(
        "path", "reason"
    )
def c():
    problem = DataError(1, 2)
    return CheckpointError(
        3, 4)
def d():
    raise ValueError("not a user's")
def e(error):
    raise
def f():
    return read("path", error=DataError).get("key")
"""


def test_the_lines_of_a_module(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    found = raise_lines.lines_of(path, below=tmp_path)
    assert [(line.first, line.last) for line in found] == [(3, 3), (5, 7), (9, 9), (10, 11)]
    assert found[1].listed_as == "module.py: raise (newer or error)('path', 'reason')"


def test_an_error_notes_who_made_it() -> None:
    before = {*raise_lines.reached()}
    with pytest.raises(ConfigError, match="steps"):
        load("tiny", overrides=["train.steps=-1"])
    new = {*raise_lines.reached()} - before
    assert not [place for place in new if not place.startswith(str(raise_lines.SRC))]
    here = len(raise_lines.unreached({*raise_lines.reached()}))
    assert 0 < here < len(raise_lines.unreached(set())), "the line that said so is no longer among them"
    assert str(Resumable("a line")) == "a line" and Resumable("a").exit_code == 75


def test_the_list_names_lines_that_exist_and_a_reason_for_each() -> None:
    every = {line.listed_as for line in raise_lines.unreached(set())}
    assert raise_lines.listed() <= every, sorted(raise_lines.listed() - every)
    lines = raise_lines.LISTED.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line and not line.startswith("#") and "  # " not in line]
