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
from electra.fsio import read_object, remove_leftovers, seam, write_json
from electra.manifest import FILE, commit_folder, read_manifest
from electra.progress import say

FOLDER = "checkpoints"
STATE = "state.json"
FILES = {"model.safetensors", "optimizer.safetensors", STATE}


class NewerFormat(CheckpointError):
    """A whole checkpoint that a later version of this program wrote: not damaged, so never passed over."""


def checkpoint_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def save(run: Path, *, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int) -> Path:
    """Commit a checkpoint, then remove all but the newest `keep`.

    `tensors` are groups by name: `model` is one file, all others are another.
    """
    target = checkpoint_path(run, step)
    try:
        if target.exists():
            if _whole(target):
                return target
            set_aside(target)
        with commit_folder(target, step=step) as aside:
            write_tensors(aside / "model.safetensors", tensors["model"])
            seam("model-written")
            others = {f"{group}.{name}": t for group, named in tensors.items() for name, t in named.items()}
            of_model = {f"model.{name}" for name in tensors["model"]}
            write_tensors(aside / "optimizer.safetensors", {n: t for n, t in others.items() if n not in of_model})
            seam("optimizer-written")
            write_json(aside / STATE, state)
    except OSError as error:
        raise CheckpointError(
            target, f"could not be saved: {error.strerror or error}", fix="the checkpoint before it is untouched"
        ) from error
    upto = [path for path in steps(run) if path.name <= target.name]  # a later one here is damaged: not ours to count
    for old in upto[: -max(1, keep)]:
        seam("before-removal")
        shutil.rmtree(old, ignore_errors=True)
    return target


def verify(checkpoint: Path) -> None:
    """Raise `CheckpointError` naming what is wrong with a checkpoint, if anything is."""
    manifest = read_manifest(checkpoint, newer=NewerFormat)
    if manifest is None:
        raise CheckpointError(checkpoint / FILE, "is missing")
    for name in sorted(FILES - manifest.files.keys()):
        raise CheckpointError(checkpoint / FILE, f"does not list {name}")
    manifest.verify()


def latest(run: Path) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are named, skipped and left alone."""
    for path in reversed(steps(run)):
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
    present = steps(run)
    if found is None and present:
        reason = f"none of its {len(present)} checkpoints can be used"
        raise CheckpointError(run / FOLDER, reason, fix="move the folder away to start from the beginning")
    for path in present:
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
    for full, tensor in read_tensors(checkpoint / "optimizer.safetensors", expect=both).items():
        group, _, name = full.partition(".")
        groups.setdefault(group, {})[name] = tensor
    return groups, read_object(checkpoint / STATE, error=CheckpointError)


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


def steps(run: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, the newest last."""
    return sorted(p for p in (run / FOLDER).glob("step-*") if p.is_dir() and p.name[5:].isdecimal())
