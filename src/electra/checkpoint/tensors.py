"""Named tensors in and out of safetensors files; no pickle anywhere."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from electra import hardware
from electra.errors import CheckpointError
from electra.fsio import open_file

FP32_BYTES = 4


_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


class InParts(Protocol):
    """A tensor whose parts lie on several processes; `whole` puts it together."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def whole(self) -> Tensor: ...


def write_tensors(path: Path, tensors: Mapping[str, Tensor | InParts]) -> None:
    """Write tensors from any device as one safetensors file.

    They are copied, or put together, one at a time: safetensors' own writer wants all of them in memory.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        shape, dtype, start = tensors[name].shape, tensors[name].dtype, end
        end += shape.numel() * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        path.unlink(missing_ok=True)  # tensors may be views of the file that is there: cutting it would be a bus error
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                tensor = tensors[name]
                whole = tensor if isinstance(tensor, Tensor) else tensor.whole()
                file.write(whole.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def all_rows(name: str) -> slice:
    """Every row of a tensor."""
    return slice(None)


def read_tensors(
    path: Path,
    *,
    expect: Mapping[str, Sequence[int]] | None = None,
    only: Container[str] | None = None,
    rows: Callable[[str], slice] = all_rows,
) -> dict[str, Tensor]:
    """The tensors of a file, all or those named in `only`, refused where memory cannot hold them.

    `rows` gives the rows to read of each. Others are not read at all.
    With `expect`, exactly those names and shapes, or an error that names the difference. Nothing is read before that.
    """
    with _opened(path) as source:
        shapes = {name: source.get_slice(name).get_shape() for name in source.keys()}  # noqa: SIM118
        if expect is not None:
            _check_shapes(path, shapes, expect)
        wanted = [name for name in shapes if only is None or name in only]
        require_memory(sum(math.prod(shapes[name]) for name in wanted), where=path)
        return {
            name: source.get_tensor(name) if rows(name) == slice(None) else source.get_slice(name)[rows(name)]
            for name in wanted
        }


def tensor_names(path: Path) -> list[str]:
    """The names of a file's tensors; nothing else is read."""
    with _opened(path) as source:
        return list(source.keys())


def require_memory(parameters: int, *, where: object) -> None:
    """Refuse more fp32 numbers than this machine's memory holds."""
    memory = hardware.memory_bytes()
    if memory is not None and parameters * FP32_BYTES > memory:
        reason = f"has {parameters:,} parameters, {parameters * FP32_BYTES / 2**30:,.0f} GiB"
        raise CheckpointError(where, f"{reason}, and this machine has {memory / 2**30:,.0f} GiB of memory")


def require_finite(tensors: Mapping[str, Tensor], *, where: object) -> None:
    """Refuse weights with NaN or infinity, from which nothing can be computed."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            reason = f"{name} holds NaN or infinity"
            raise CheckpointError(where, reason, fix="take an earlier checkpoint, or fetch the model again")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        open_file(path).close()  # a FIFO would be waited for
        with safe_open(path, framework="pt") as source:
            yield source
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"cannot be read: {error}") from error


def _check_shapes(path: Path, found: Mapping[str, Sequence[int]], expect: Mapping[str, Sequence[int]]) -> None:
    if lost := _lost_parts(expect.keys(), found.keys()):
        raise CheckpointError(path, f"has no {' and no '.join(lost)}")
    for name in sorted(expect.keys() ^ found.keys()):
        raise CheckpointError(path, f"tensor {name!r} is {'missing' if name in expect else 'not expected'}")
    for name, shape in expect.items():
        if tuple(found[name]) != tuple(shape):
            raise CheckpointError(path, f"tensor {name!r} is {tuple(found[name])}, not {tuple(shape)}")


def _lost_parts(expected: Set[str], found: Set[str]) -> list[str]:
    """The parts of a model (what stands before the first dot) of which not one tensor was found."""

    def parts(names: Set[str]) -> set[str]:
        return {name.partition(".")[0] for name in names}

    return sorted(parts(expected) - parts(found))
