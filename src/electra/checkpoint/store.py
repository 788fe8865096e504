"""Checkpoints that are whole or absent, and the newest one that can be trusted.

`checkpoints/step-00001000/` holds model.safetensors, optimizer.safetensors, state.json and, written last,
manifest.json with every file's size and sha256. The folder is written aside and renamed into place; older ones are
removed only after that.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from electra.checkpoint.tensors import read_tensors, write_tensors
from electra.errors import CheckpointError
from electra.fsio import commit_dir, read_json, remove_leftovers, safe_join, seam, sha256_file, write_json
from electra.progress import say

FORMAT = 1
FOLDER = "checkpoints"


def checkpoint_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"


def save(run: Path, *, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int) -> Path:
    """Commit a checkpoint, then remove all but the newest `keep`."""
    target = checkpoint_path(run, step)
    if target.exists():
        return target
    try:
        with commit_dir(target) as aside:
            write_tensors(aside / "model.safetensors", tensors["model"])
            seam("model-written")
            moments = {f"{group}.{name}": t for group in ("average", "square") for name, t in tensors[group].items()}
            write_tensors(aside / "optimizer.safetensors", moments)
            seam("optimizer-written")
            write_json(aside / "state.json", state)
            files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_file(p)} for p in sorted(aside.iterdir())}
            write_json(aside / "manifest.json", {"format": FORMAT, "step": step, "files": files})
    except OSError as error:
        raise CheckpointError(
            target, f"could not be saved: {error.strerror or error}", fix="the checkpoint before it is untouched"
        ) from error
    for old in _steps(run)[: -max(1, keep)]:
        seam("before-removal")
        shutil.rmtree(old, ignore_errors=True)
    return target


def verify(checkpoint: Path) -> None:
    """Raise `CheckpointError` naming what is wrong with a checkpoint, if anything is."""
    manifest = checkpoint / "manifest.json"
    try:
        listing = read_json(manifest)
        files = listing["files"]
        version = listing["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(manifest, f"cannot be read: {error}") from error
    if version > FORMAT:
        raise CheckpointError(
            manifest, f"format {version} is newer than this program's {FORMAT}", fix="upgrade electra"
        )
    for name, facts in files.items():
        path = safe_join(checkpoint, name)
        if not path.is_file():
            raise CheckpointError(path, "is missing")
        if path.stat().st_size != facts["bytes"]:
            raise CheckpointError(path, f"has {path.stat().st_size} bytes, not {facts['bytes']}")
        if sha256_file(path) != facts["sha256"]:
            raise CheckpointError(path, "is damaged: its sha256 differs from the manifest's")


def latest(run: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are named, skipped and left alone."""
    for path in reversed(_steps(run)):
        try:
            verify(path)
        except CheckpointError as error:
            say(f"warning: skipping a damaged checkpoint: {error}")
            continue
        return path
    return None


def load(checkpoint: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by group and the state of a verified checkpoint."""
    moments = read_tensors(checkpoint / "optimizer.safetensors")
    groups: dict[str, dict[str, Tensor]] = {"model": read_tensors(checkpoint / "model.safetensors")}
    for group in ("average", "square"):
        groups[group] = {
            name.removeprefix(f"{group}."): t for name, t in moments.items() if name.startswith(f"{group}.")
        }
    return groups, read_json(checkpoint / "state.json")


def clean(run: Path) -> None:
    """Delete what a killed writer left aside."""
    remove_leftovers(run / FOLDER)


def _steps(run: Path) -> list[Path]:
    return sorted(p for p in (run / FOLDER).glob("step-*") if p.is_dir())
