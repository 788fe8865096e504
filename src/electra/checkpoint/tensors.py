"""Named tensors in and out of safetensors files; no pickle anywhere."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from electra.errors import CheckpointError


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors from any device as one file."""
    path.touch()
    mode = path.stat().st_mode  # safetensors would leave a file that only its owner can read
    try:
        save_file({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error
    path.chmod(mode)


def read_tensors(path: Path, *, expect: dict[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """The tensors of a file; with `expect`, exactly those names and shapes or an error that names the difference."""
    try:
        with safe_open(path, framework="pt") as source:
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"cannot be read: {error}") from error
    if expect is not None:
        if lost := _lost_parts(expect.keys(), tensors.keys()):
            raise CheckpointError(path, f"has no {' and no '.join(lost)}")
        for name in sorted(expect.keys() ^ tensors.keys()):
            raise CheckpointError(path, f"tensor {name!r} is {'missing' if name in expect else 'not expected'}")
        for name, shape in expect.items():
            if tensors[name].shape != shape:
                raise CheckpointError(path, f"tensor {name!r} is {tuple(tensors[name].shape)}, not {tuple(shape)}")
    return tensors


def _lost_parts(expected: Set[str], found: Set[str]) -> list[str]:
    """The parts of a model (what stands before the first dot) of which not one tensor was found."""

    def parts(names: Set[str]) -> set[str]:
        return {name.partition(".")[0] for name in names}

    return sorted(parts(expected) - parts(found))
