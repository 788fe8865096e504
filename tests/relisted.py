"""A folder's manifest made anew, for tests of what comes after its sums: a change that a person made on purpose."""

from __future__ import annotations

from pathlib import Path

from electra.manifest import sums_below, write_manifest


def relist(folder: Path) -> None:
    """Let the manifest list the files as they are now."""
    write_manifest(folder, sums_below(folder))
