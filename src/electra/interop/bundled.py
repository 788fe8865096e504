"""Models that come with this package, named `electra:small` and `electra:tiny`.

Each is a run folder of weights alone, in bf16: config, tokenizer, one checkpoint and a card. Neither a hub name nor the
name of a folder that a person would choose has a colon, and a name that begins so is never looked up elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from electra.errors import CheckpointError, suggest

FOLDER = Path(__file__).parents[1] / "bundled"
PREFIX = "electra:"
SMALL, TINY = f"{PREFIX}small", f"{PREFIX}tiny"
NAMES = {SMALL: 32_000_000, TINY: 4_000_000}
"""Each name, the largest model first, and more bytes than its folder may have."""
ABSENT = "install the released wheel, which has it, or give a run, an export, a transformers folder or a hub name"


def is_bundled(path: Path) -> bool:
    """Whether a model is named as those of this package are."""
    return str(path).startswith(PREFIX)


def folder_of(name: str) -> Path:
    """Where a model of this package lies, or would lie."""
    return FOLDER / name.removeprefix(PREFIX)


def present() -> tuple[str, ...]:
    """The names of the models that this installation has."""
    return tuple(name for name in NAMES if (folder_of(name) / "config.toml").is_file())


def bytes_of(name: str) -> int:
    """The size of a model's folder."""
    return folder_bytes(folder_of(name))


def folder_bytes(folder: Path) -> int:
    """The size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bundled_folder(path: Path) -> Path:
    """The folder of `electra:NAME`, refused where there is none; any other path as it is."""
    if not is_bundled(path):
        return path
    name = str(path)
    if name not in NAMES:
        fix = suggest(name, NAMES) or f"there are {', '.join(NAMES)}"
        raise CheckpointError(name, "is not a model of this package", fix=fix)
    if name not in present():
        raise CheckpointError(name, "is not in this installation", fix=ABSENT)
    return folder_of(name)


def default_name() -> str | None:
    """The model that is meant where none is named: the largest that this installation has; None where it has none."""
    return next(iter(present()), None)
