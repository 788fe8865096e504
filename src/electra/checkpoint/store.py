"""Checkpoints that are whole or absent, and the newest one that can be trusted.

`checkpoints/step-00001000/` holds model.safetensors, optimizer.safetensors, state.json and, written last,
manifest.json with every file's size and sha256. The folder is written aside and renamed into place; older ones are
removed only after that. A damaged one is never removed: where it stands in the way it is renamed `damaged-step-...`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Size, Tensor

from electra.checkpoint.tensors import read_tensors, write_tensors
from electra.errors import CheckpointError
from electra.fsio import commit_dir, read_json, remove_leftovers, safe_join, seam, sha256_file, write_json
from electra.progress import say

FORMAT = 1
FOLDER = "checkpoints"
FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}


class NewerFormat(CheckpointError):
    """A whole checkpoint that a later version of this program wrote: not damaged, so never passed over."""


def checkpoint_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def save(run: Path, *, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int) -> Path:
    """Commit a checkpoint, then remove all but the newest `keep`."""
    target = checkpoint_path(run, step)
    try:
        if target.exists():
            if _whole(target):
                return target
            set_aside(target)
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
    upto = [path for path in _steps(run) if path.name <= target.name]  # a later one here is damaged: not ours to count
    for old in upto[: -max(1, keep)]:
        seam("before-removal")
        shutil.rmtree(old, ignore_errors=True)
    return target


def verify(checkpoint: Path) -> None:
    """Raise `CheckpointError` naming what is wrong with a checkpoint, if anything is."""
    manifest = checkpoint / "manifest.json"
    try:
        listing = read_json(manifest)
        version = int(listing["format"])
        if version > FORMAT:
            raise NewerFormat(
                manifest, f"format {version} is newer than this program's {FORMAT}", fix="upgrade electra"
            )
        files = {
            safe_join(checkpoint, name): (int(facts["bytes"]), facts["sha256"])
            for name, facts in listing["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(manifest, f"cannot be read: {error}") from error
    for name in sorted(FILES - {path.name for path in files}):
        raise CheckpointError(manifest, f"does not list {name}")
    for path, (size, digest) in files.items():
        try:
            found = path.stat().st_size
            if found != size:
                raise CheckpointError(path, f"has {found} bytes, not {size}")
            if sha256_file(path) != digest:
                raise CheckpointError(path, "is damaged: its sha256 differs from the manifest's")
        except FileNotFoundError:
            raise CheckpointError(path, "is missing") from None
        except OSError as error:
            raise CheckpointError(path, f"cannot be read: {error.strerror or error}") from error


def latest(run: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are named, skipped and left alone."""
    for path in reversed(_steps(run)):
        try:
            verify(path)
        except NewerFormat:
            raise
        except CheckpointError as error:
            say(f"warning: skipping a damaged checkpoint: {error}")
            continue
        return path
    return None


def latest_for_training(run: Path) -> Path | None:
    """The checkpoint to go on from, with damaged later ones put out of the way; refused where all are damaged."""
    found = latest(run)
    steps = _steps(run)
    if found is None and steps:
        reason = f"none of its {len(steps)} checkpoints can be used"
        raise CheckpointError(run / FOLDER, reason, fix="move the folder away to start from the beginning")
    for path in steps:
        if found is not None and path.name > found.name:
            set_aside(path)
    return found


def load(
    checkpoint: Path, *, expect: dict[str, Size] | None = None, trained: Collection[str] | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by group and the state of a verified checkpoint; with `expect`, of exactly these names and shapes.

    `trained` names the tensors that the optimizer keeps averages of; without it, all are.
    """
    both = None
    if expect is not None:
        names = expect.keys() if trained is None else trained
        both = {f"{group}.{name}": expect[name] for group in ("average", "square") for name in names}
    groups: dict[str, dict[str, Tensor]] = {"model": read_tensors(checkpoint / "model.safetensors", expect=expect)}
    moments = read_tensors(checkpoint / "optimizer.safetensors", expect=both)
    for group in ("average", "square"):
        groups[group] = {
            name.removeprefix(f"{group}."): t for name, t in moments.items() if name.startswith(f"{group}.")
        }
    return groups, read_json(checkpoint / "state.json")


def clean(run: Path) -> None:
    """Delete what a killed writer left aside."""
    remove_leftovers(run / FOLDER)
    for entry in run.glob(".tmp-*"):
        if entry.is_file():
            entry.unlink(missing_ok=True)


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, so that a new one can take its name; where it went."""
    moved = checkpoint.with_name(f"damaged-{checkpoint.name}-{secrets.token_hex(4)}")
    os.rename(checkpoint, moved)
    say(f"warning: {checkpoint.name} is damaged and was renamed {moved.name}")
    return moved


def _whole(checkpoint: Path) -> bool:
    try:
        verify(checkpoint)
    except NewerFormat:
        raise
    except CheckpointError:
        return False
    return True


def _steps(run: Path) -> list[Path]:
    return sorted(p for p in (run / FOLDER).glob("step-*") if p.is_dir() and p.name[5:].isdecimal())
