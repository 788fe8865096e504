"""Checkpoints that are whole or absent, and the newest one that can be trusted.

`checkpoints/step-00001000/` holds model.safetensors, optimizer.safetensors, state.json and, written last,
manifest.json with every file's size and sha256. The folder is written aside and renamed into place; older ones are
removed only after that. A damaged one is never removed: where it stands in the way it is renamed `damaged-step-...`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from electra.checkpoint.tensors import InParts, all_rows, read_tensors, tensor_names, write_tensors
from electra.errors import CheckpointError, StorageError
from electra.fsio import DISK_ERRORS, read_object, remove_folder, remove_leftovers, seam, write_json
from electra.manifest import FILE, commit_folder, read_manifest
from electra.progress import say

FOLDER = "checkpoints"
STATE = "state.json"
FILES = {"model.safetensors", "optimizer.safetensors", STATE}
GROUPS, EMA = ("average", "square"), "ema"
"""What the optimizer keeps of each parameter: Adam's averages, and an average of the weights where a run has one."""


class NewerFormat(CheckpointError):
    """A whole checkpoint that a later version of this program wrote: not damaged, so never passed over."""


def checkpoint_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def save(
    run: Path, *, step: int, tensors: Mapping[str, Mapping[str, Tensor | InParts]], state: dict[str, Any], keep: int
) -> Path:
    """Commit a checkpoint, then remove all but the newest `keep`.

    `tensors` are groups by name: `model` is one file, all others are another. Both are the same bytes, whether they
    lie on one process or in parts on several.
    """
    target = checkpoint_path(run, step)
    try:
        if target.exists() and not _whole(target):
            set_aside(target)
        if not target.exists():
            with commit_folder(target, step=step) as aside:
                write_tensors(aside / "model.safetensors", tensors["model"])
                seam("model-written")
                others = [group for group in tensors if group != "model"]
                averages = {f"{group}.{name}": t for group in others for name, t in tensors[group].items()}
                write_tensors(aside / "optimizer.safetensors", averages)
                seam("optimizer-written")
                write_json(aside / STATE, state)
    except OSError as error:
        fix = DISK_ERRORS.get(error.errno or 0, "is its folder there, and yours?")
        kept = "the checkpoint before it is untouched; " if steps(run) else ""
        file = Path(str(error.filename or target)).name
        reason = f"{error.strerror or error}" if file == target.name else f"{file}: {error.strerror or error}"
        raise StorageError(target, f"could not be saved: {reason}", fix=kept + fix) from error
    retain(run, target, keep=keep)
    return target


def retain(run: Path, newest: Path, *, keep: int) -> None:
    """Remove all but `keep` checkpoints up to `newest`, which is whole.

    Called after a save, and where a run starts: a kill may have come between the two.
    """
    upto = [path for path in steps(run) if path.name <= newest.name]  # a later one here is damaged: not ours to count
    for old in upto[: -max(1, keep)]:
        seam("before-removal")
        remove_folder(old)


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


def require_latest(run: Path) -> Path:
    """`latest`, refused where there is none."""
    if (found := latest(run)) is None:
        raise CheckpointError(run, "has no whole checkpoint yet", fix="train it first")
    return found


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
    checkpoint: Path,
    *,
    expect: dict[str, Size] | None = None,
    trained: Collection[str] | None = None,
    groups: Collection[str] = GROUPS,
    rows: Callable[[str], slice] = all_rows,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by group and the state of a verified checkpoint; with `expect`, of exactly these names and shapes.

    `trained` names the tensors that the optimizer keeps `groups` of averages of; without it, all are. `rows` gives the
    rows of each that are read of its averages: those that this process keeps.
    """
    both = None
    if expect is not None:
        names = expect.keys() if trained is None else trained
        both = {f"{group}.{name}": expect[name] for group in groups for name in names}
    found: dict[str, dict[str, Tensor]] = {"model": read_tensors(checkpoint / "model.safetensors", expect=expect)}

    def rows_of(full: str) -> slice:
        return rows(full.partition(".")[2])

    for full, tensor in read_tensors(checkpoint / "optimizer.safetensors", expect=both, rows=rows_of).items():
        group, _, name = full.partition(".")
        found.setdefault(group, {})[name] = tensor
    return found, read_object(checkpoint / STATE, error=CheckpointError)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The weights that a checkpoint stands for, in fp32: the average of them where its run keeps one, else the last."""
    averages = checkpoint / "optimizer.safetensors"
    names = {name for name in tensor_names(averages) if name.startswith(f"{EMA}.")}
    averaged = read_tensors(averages, only=names) if names else {}
    named = {name.removeprefix(f"{EMA}."): tensor for name, tensor in averaged.items()}
    whole = read_tensors(checkpoint / "model.safetensors") | named
    return {name: tensor.to(torch.float32) for name, tensor in whole.items()}


def clean(run: Path) -> None:
    """Delete what a killed writer left aside."""
    remove_leftovers(run / FOLDER)
    for entry in run.glob(".tmp-*"):
        if entry.is_file():
            entry.unlink(missing_ok=True)


def set_aside(checkpoint: Path) -> None:
    """Rename a damaged checkpoint, so that a new one can take its name."""
    moved = checkpoint.with_name(f"damaged-{checkpoint.name}-{secrets.token_hex(4)}")
    os.rename(checkpoint, moved)
    say(f"warning: {checkpoint.name} is damaged and was renamed {moved.name}")


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
