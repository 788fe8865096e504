"""CONTRIBUTING.md names every part of the package, and its four answers are where it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def defined(path: Path) -> set[str]:
    """Functions and classes at the top of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, kinds)}


def test_the_four_answers_are_where_it_says() -> None:
    rows = re.findall(r"^\| ([^|`]+\?) \| `([^`]+)` \| `([^`]+)` \|$", section("Where is it?"), re.MULTILINE)
    assert len(rows) == 4
    assert [(file, symbol) for _, file, symbol in rows if symbol not in defined(ROOT / file)] == []


def test_the_map_names_every_room_and_nothing_else() -> None:
    named = re.findall(r"^\| `(\w+)` \|", section("The house"), re.MULTILINE)
    package = ROOT / "src" / "electra"
    parts = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(parts - {"__init__", "__main__"})
