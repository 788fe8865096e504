"""Folders that transformers reads and writes: config.json, model.safetensors, tokenizer files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra import fsio
from electra.checkpoint.tensors import read_tensors, tensor_names
from electra.errors import CheckpointError, StorageError
from electra.interop import names, settings
from electra.interop.names import Tensors
from electra.interop.network import Weights, checked
from electra.model.encoder import discriminator_shape
from electra.ops.reference.attention import rotation

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def is_folder(path: Path) -> bool:
    """Whether transformers could have written this folder."""
    return (path / CONFIG).is_file()


def read_folder(path: Path) -> Weights:
    """The network in a transformers ELECTRA or RoFormer folder; where it has no pre-training head, `head` is None."""
    values = fsio.read_json(path / CONFIG, error=CheckpointError)
    config, length = settings.from_transformers(values, path / CONFIG)
    objective = values.get(settings.OBJECTIVE)
    files = _weight_files(path)
    stored = [name for file in files for name in tensor_names(file)]
    base = names.family(rotary=config.rotary)
    output, token = names.OUTPUT_TABLES[base], names.token_table(base)
    prefix = "" if any(name.startswith(f"{base}.") for name in stored) else f"{base}."  # of a bare encoder
    found = {prefix + name for name in stored}
    head = names.head_in(found)
    table = names.translation(discriminator_shape(config), head)
    used = {name for group in table.values() for name in group}
    missing = sorted(used - found)
    if missing:
        raise CheckpointError(path, f"lacks {len(missing)} tensors, the first is {missing[0]}")
    wanted = {name.removeprefix(prefix) for name in {*used, output, names.ROTATION}}
    theirs = {prefix + name: tensor for file in files for name, tensor in read_tensors(file, only=wanted).items()}
    if head == "masked" and output in theirs and not torch.equal(theirs[output], theirs[token]):
        raise CheckpointError(path, f"{output} differs from the token table, and only tied tables are supported")
    _check_rotation(theirs.get(names.ROTATION), path)
    copies = {output, output.replace("weight", "bias"), names.ROTATION}  # of what is read already, or computed
    unused = {name for name in found - used - copies if not name.endswith("position_ids")}
    tensors = names.from_transformers(theirs, table)
    weights = Weights(
        config=config,
        head=head,
        length=length,
        tensors=tensors,
        objective=objective if isinstance(objective, str) else None,
        unused=tuple(sorted(unused)),
    )
    return checked(weights, path)


def write_weights(folder: Path, weights: Weights, *, pad_id: int) -> None:
    """Put a pre-trained network's config.json and model.safetensors into `folder`."""
    write_files(folder, settings_of(weights, pad_id=pad_id), tensors_of(weights))


def tensors_of(weights: Weights) -> Tensors:
    """A network's tensors as transformers names them."""
    shape = discriminator_shape(weights.config)
    tensors = names.to_transformers(weights.tensors, names.translation(shape, weights.head))
    return tensors | ({names.ROTATION: _rotation(weights.config.positions, shape.head_size)} if shape.rotary else {})


def _rotation(positions: int, head_size: int) -> Tensor:
    """RoFormer's table of angles: a sine, then a cosine, of each pair."""
    cosine_LH, sine_LH = rotation(positions, head_size, torch.device("cpu"))
    return torch.cat((sine_LH[:, ::2], cosine_LH[:, ::2]), dim=1)


def _check_rotation(stored: Tensor | None, where: Path) -> None:
    """Refuse a table of angles that is not the one that we compute."""
    if stored is not None and not torch.allclose(stored.float(), _rotation(*stored.shape), atol=1e-5):
        raise CheckpointError(where, f"{names.ROTATION} is not the usual one, and only that is supported")


def settings_of(weights: Weights, *, pad_id: int) -> dict[str, Any]:
    """The content of a pre-trained network's config.json."""
    values = settings.to_transformers(weights.config, head=weights.head, pad_id=pad_id, length=weights.length)
    return values | ({} if weights.objective is None else {settings.OBJECTIVE: weights.objective})


def write_settings(folder: Path, values: dict[str, Any]) -> None:
    """Put config.json with these values into `folder`."""
    (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def write_files(folder: Path, values: dict[str, Any], tensors: Tensors) -> None:
    """Put config.json with these values and model.safetensors with these tensors into `folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    write_settings(folder, values)
    (folder / WEIGHTS).touch()
    mode = (folder / WEIGHTS).stat().st_mode  # safetensors would leave a file that only its owner can read
    try:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / WEIGHTS).chmod(mode)
    except (SafetensorError, OSError) as error:  # the disk is full, mostly
        raise StorageError(
            folder / WEIGHTS, f"could not be written: {error}", fix="is there room on the disk?"
        ) from error


def _weight_files(path: Path) -> list[Path]:
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        return _pieces(path)
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if pickles:
        reason = f"{pickles[0]} is a pickle, which can run code when read, so it is never read here"
        fix = f"convert it: load the folder with transformers, then save_pretrained(DIR), which writes {WEIGHTS}"
        raise CheckpointError(path, reason, fix=fix)
    raise CheckpointError(path, f"has no {WEIGHTS}", fix="give a folder that save_pretrained wrote")


def _pieces(path: Path) -> list[Path]:
    """The files that transformers cut the weights into."""
    places = fsio.read_object(path / INDEX, error=CheckpointError).get("weight_map")
    if not isinstance(places, dict):
        raise CheckpointError(path / INDEX, "has no weight_map")
    files = sorted({str(place) for place in places.values()})
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(path / INDEX, f"names {name!r}, which is not a safetensors file of this folder")
    return [path / name for name in files]
