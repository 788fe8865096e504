"""The entries of a speedrun: a TOML file each, with what it changes of a preset."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from electra.config.load import load
from electra.config.schema import Config
from electra.errors import ConfigError, suggest

DEFAULT_ENTRY = "faithful"
MLM_ENTRIES = {"faithful": "bert", "modern": "modern-bert"}
"""The entry that has MLM in place of RTD and is otherwise the same, by the entry."""


def entry_names() -> list[str]:
    """The entries that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def entry_title(name: str) -> str:
    """What an entry is: the comment on its first line."""
    text: str = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# ")


def load_entry(name: str, *, overrides: Iterable[str] = ()) -> Config:
    """The configuration of an entry, changed by `key=value` overrides."""
    if name not in entry_names():
        hint = suggest(name, entry_names()) or f"one of: {', '.join(entry_names())}"
        raise ConfigError("--entry", f"{name!r} is not an entry", fix=hint)
    with resources.as_file(_folder() / f"{name}.toml") as file:
        return load(file=Path(file), overrides=overrides)


def _folder() -> Any:
    return resources.files("electra.speedrun") / "entries"
