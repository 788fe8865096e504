"""What tells the folder of a fine-tuned model from that of a pre-trained one."""

from __future__ import annotations

import re
from pathlib import Path

TASK_FILE = "task.json"
_SEED = re.compile(r"seed-(\d+)")


def is_finetuned(folder: Path) -> bool:
    """Whether this is a fine-tuned model, or a run that holds some."""
    return (folder / TASK_FILE).is_file() or bool(seed_folders(folder))


def seed_folders(folder: Path) -> list[Path]:
    """The whole seed folders of a fine-tuning run, by number."""
    if not folder.is_dir():
        return []
    found = {entry: name for entry in folder.iterdir() if (name := _SEED.fullmatch(entry.name))}
    return sorted((path for path in found if (path / TASK_FILE).is_file()), key=lambda path: int(found[path][1]))
