"""The pages of limits and of exit codes say what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from electra import cli, errors
from electra.cli import main

ROOT = Path(__file__).parents[1]
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "": 1}


def rows(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")
    ]


def test_every_limit_is_the_constant_it_names() -> None:
    found = [row for row in rows("limits.md") if "`electra." in row[-1]]
    assert len(found) > 10
    for _, figure, constant in found:
        module, _, name = constant.strip("`").rpartition(".")
        number, _, unit = figure.partition(" ")
        assert int(number.replace(",", "")) * UNITS[unit] == getattr(importlib.import_module(module), name), constant


def test_every_exit_code_is_in_the_table() -> None:
    table = {name.strip("`"): int(code) for code, name, _ in rows("exit-codes.md")[2:] if name}
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ElectraError)]
    assert table == {one.__name__: one.exit_code for one in classes if not one.__name__.startswith("_")}
    assert table["DataError"] == cli.DATA_EXIT


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"),
    ],
)
def test_out_of_memory_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(self: object, context: object, name: str) -> None:
        raise error

    monkeypatch.setattr(cli.LazyGroup, "get_command", command)
    result = CliRunner().invoke(main, ["config", "presets"])
    assert result.exit_code == 1 and re.fullmatch(r"electra: error: out of memory \(lower .*\)\n", result.stderr)
