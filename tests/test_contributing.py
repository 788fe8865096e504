"""CONTRIBUTING.md's answers to a newcomer's questions name files and symbols that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADING = "Where is it?"
QUESTIONS = ("RTD loss", "mask", "attention", "objective")
"""What the four questions are about; each must have a row."""


def answers(markdown: str) -> list[tuple[str, str, str]]:
    """Question, file and symbol of each row of the table under the heading."""
    section = re.split(rf"^#+ {re.escape(HEADING)}\s*$", markdown, maxsplit=1, flags=re.MULTILINE)
    if len(section) == 1:
        return []
    table = re.split(r"^#+ ", section[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\|([^|\n]+)\|\s*`([^`|\n]+)`\s*\|\s*`([^`|\n]+)`\s*\|", table, flags=re.MULTILINE)
    return [(question.strip(), file, symbol) for question, file, symbol in rows]


def defines(source: str, symbol: str) -> bool:
    """Whether a module defines a symbol, `function`, `Class`, `Class.method` or `CONSTANT`, with or without `()`."""
    body: list[ast.stmt] = ast.parse(source).body
    *outer, name = symbol.removesuffix("()").split(".")
    for part in outer:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part), [])
    return name in {found for node in body for found in _names(node)}


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_the_answers_exist() -> None:
    found = answers((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    asked = " ".join(question for question, _, _ in found).lower()
    assert len(found) >= len(QUESTIONS) and all(about.lower() in asked for about in QUESTIONS), found
    wrong = [
        f"{question} {file}: {symbol}"
        for question, file, symbol in found
        if not (ROOT / file).is_file() or not defines((ROOT / file).read_text(encoding="utf-8"), symbol)
    ]
    assert wrong == []


MODULE = """
LIMIT: int = 3
TABLE = {}
def loss(): ...
class Model:
    def forward(self): ...
"""


@pytest.mark.parametrize("symbol", ["LIMIT", "TABLE", "loss", "loss()", "Model", "Model.forward"])
def test_a_symbol_that_is_there_is_found(symbol: str) -> None:
    assert defines(MODULE, symbol)


@pytest.mark.parametrize("symbol", ["forward", "Model.loss", "Loss", "Other.forward", ""])
def test_a_symbol_that_is_not_there_is_missed(symbol: str) -> None:
    assert not defines(MODULE, symbol)


def test_only_the_table_under_the_heading_is_read() -> None:
    row = "| where? | `src/electra/rng.py` | `derive` |"
    page = f"# Page\n{row}\n## Where is it?\n\n| question | file | symbol |\n|---|---|---|\n{row}\n\n## Next\n{row}\n"
    assert answers(page) == [("where?", "src/electra/rng.py", "derive")]
    assert answers(f"# Page\n{row}\n") == []
