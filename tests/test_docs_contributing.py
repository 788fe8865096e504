"""CONTRIBUTING.md's map names every part of the package; `test_contributing` checks its four answers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_map_names_every_room_and_nothing_else() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", page.split("\n## The house\n")[1].split("\n## ")[0], re.MULTILINE)
    package = ROOT / "src" / "electra"
    parts = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(parts - {"__init__", "__main__"})
