"""The fine-tuning page names every setting and command as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from electra.cli import COMMANDS
from electra.cli.finetune import GLUE, OWN, SQUAD
from electra.config.finetune import FinetuneConfig
from electra.finetune.settings import settings

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "finetuning.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*) \| ", PAGE.split("| key | default | meaning |")[1], re.MULTILINE)


def test_every_setting_is_there_with_its_default() -> None:
    said: dict[str, str] = {}
    for names, defaults in ROWS:
        keys = re.findall(r"\w+", names)
        said |= dict(zip(keys, defaults.split(", ") if len(keys) > 1 else [defaults], strict=True))
    assert list(said) and set(said) == {field.name for field in fields(FinetuneConfig)}
    for field in fields(FinetuneConfig):
        given = said[field.name].strip("`")
        if not given.startswith("by "):
            assert given == field.default or float(given) == field.default, field.name


@pytest.mark.parametrize("key", ["lr", "layer_decay"])
def test_settings_by_size(key: str) -> None:
    row = re.search(rf"^\| `{key}` \| (.*) \|$", PAGE.split("| | tiny | small | base | large |")[1], re.MULTILINE)
    assert row is not None
    shown = [float(cell.split()[0]) for cell in row[1].split(" | ")]
    assert shown == [getattr(settings("cola", size), key) for size in ("tiny", "small", "base", "large")]


def test_commands_and_tasks_exist() -> None:
    assert set(re.findall(r"\belectra ([a-z]+)\b", PAGE)) <= {*COMMANDS}
    used = set(re.findall(r"electra finetune ([a-z0-9]+)", PAGE))
    assert used <= {*GLUE, *SQUAD, *OWN} and {*OWN, "questions", "squad"} <= used
    assert f"`{' '.join(GLUE)}`" in PAGE


def test_the_page_is_linked() -> None:
    assert "(finetuning.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
    assert "(docs/finetuning.md)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")
