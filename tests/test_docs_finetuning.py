"""The fine-tuning page names settings, commands and tasks as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from electra.cli import COMMANDS
from electra.config.finetune import FinetuneConfig
from electra.finetune.paper_settings import settings
from electra.tasks.named_tasks import GLUE, OWN, SQUAD

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "how-to" / "finetune.md").read_text(encoding="utf-8")


def test_every_setting_that_is_named_exists() -> None:
    keys = {field.name for field in fields(FinetuneConfig)}
    named = set(re.findall(r"[` ](\w+)=[\d.]", PAGE)) | set(re.findall(r"^\| `(\w+)` \| [\d.]", PAGE, re.MULTILINE))
    assert {"lr", "epochs", "length", "layer_decay", "seed"} <= named <= keys


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
