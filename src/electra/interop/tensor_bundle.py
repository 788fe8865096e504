"""TensorFlow checkpoints without TensorFlow: the tensor-bundle format, read with limits.

PREFIX.index is a sorted string table as LevelDB's: blocks of (key, value) pairs with shared key prefixes, each block
followed by a byte for its compression and a masked CRC-32C; a block that finds the others; a footer of 48 bytes. A key
is a tensor's name, its value a small protocol buffer: dtype, shape, file, offset, size, CRC. The key "" is the header.
PREFIX.data-00000-of-00001 and its siblings are the tensors' bytes, little-endian. Nothing in either is code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from electra.errors import CheckpointError
from electra.interop.crc32c import crc32c, masked
from electra.interop.snappy import uncompress

INDEX = ".index"
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_MAX_INDEX_BYTES = 1 << 28
_MAX_BLOCK_BYTES = 1 << 26
_MAX_TENSORS = 1 << 20
_MAX_RANK = 8
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}  # of types.proto; bfloat16 is 14
_BFLOAT16 = 14
_LATEST = re.compile(r'^model_checkpoint_path: "([^"]*)"', re.MULTILINE)
Fields = list[tuple[int, int | bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where a tensor is, and what."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class Bundle:
    """The tensors of a checkpoint by name; each is read from its file when it is asked for."""

    def __init__(self, prefix: Path, entries: dict[str, Entry], shards: int) -> None:
        self.prefix, self.entries, self.shards = prefix, entries, shards

    def read(self, name: str) -> NDArray[np.float32]:
        """A tensor as fp32; refused where its size, place or CRC is wrong."""
        entry = self.entries[name]
        where = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")
        if entry.sliced or (entry.dtype not in _DTYPES and entry.dtype != _BFLOAT16):
            kind = "is cut into slices" if entry.sliced else f"has TensorFlow's dtype {entry.dtype}"
            raise CheckpointError(self.prefix, f"{name} {kind}, which is not read here")
        dtype = np.dtype(_DTYPES.get(entry.dtype, "<u2"))
        wanted = dtype.itemsize
        for size in entry.shape:
            wanted *= size
        if wanted != entry.size:
            raise CheckpointError(self.prefix, f"{name} has {entry.size} bytes, but its shape needs {wanted}")
        try:
            with open(where, "rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size) if entry.offset + entry.size <= where.stat().st_size else b""
        except OSError as error:
            raise CheckpointError(where, f"cannot be read: {error.strerror}", fix="copy every file again") from error
        if len(data) != entry.size:
            raise CheckpointError(where, f"ends before {name}", fix="copy it again")
        if masked(crc32c(data)) != entry.crc:
            raise CheckpointError(where, f"{name} is damaged: its CRC differs", fix="copy it again")
        array = np.frombuffer(data, dtype)
        if entry.dtype == _BFLOAT16:  # the upper half of an fp32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32).reshape(entry.shape)


def checkpoint_prefix(path: Path) -> Path | None:
    """The checkpoint that a path means: PREFIX, PREFIX.index or a folder with one; None where there is none."""
    if path.is_file() and path.suffix == INDEX:
        return path.with_suffix("")
    if not path.is_dir():
        return path if path.with_name(path.name + INDEX).is_file() else None
    found = sorted(file.with_suffix("") for file in path.glob(f"*{INDEX}"))
    if len(found) > 1 and (path / "checkpoint").is_file():
        with open(path / "checkpoint", encoding="utf-8", errors="replace") as file:
            latest = _LATEST.search(file.read(1 << 16))
        found = [one for one in found if latest and one.name == Path(latest[1]).name] or found
    if len(found) > 1:
        listed = ", ".join(one.name for one in found[:9])
        raise CheckpointError(path, f"holds several TensorFlow checkpoints: {listed}", fix=f"give {found[-1]}")
    return found[0] if found else None


def read_bundle(prefix: Path) -> Bundle:
    """The tensors of the checkpoint PREFIX.index, PREFIX.data-*."""
    where = prefix.with_name(prefix.name + INDEX)
    try:
        if where.stat().st_size > _MAX_INDEX_BYTES:
            raise CheckpointError(where, f"has more than {_MAX_INDEX_BYTES} bytes, which no list of tensors needs")
        pairs = dict(_table(where.read_bytes()))
        header = dict(_fields(pairs.pop(b"")))
        if header.get(2, 0) != 0:
            raise ValueError("its numbers are big-endian")
        shards = _whole(header.get(1, 0))
        entries = {key.decode(): _entry(value) for key, value in pairs.items()}
    except OSError as error:
        raise CheckpointError(where, f"cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, KeyError) as error:  # cut short, or not such a file at all
        reason = "is not whole" if isinstance(error, IndexError | KeyError) else str(error)
        raise CheckpointError(
            where, f"is not a TensorFlow checkpoint's index: {reason}", fix="copy it again"
        ) from error
    if any(not 0 <= entry.shard < shards for entry in entries.values()):
        raise CheckpointError(where, f"names a file beyond its {shards}")
    return Bundle(prefix, entries, shards)


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value of a sorted string table."""
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise ValueError("it does not end as one does")
    footer = data[-_FOOTER:]
    at = 0
    for _ in range(2):  # the handle of the metaindex block, which is not needed
        _, at = _varint(footer, at)
    count = 0
    for _, handle in _pairs(_block(data, footer[at:])):
        for pair in _pairs(_block(data, handle)):
            count += 1
            if count > _MAX_TENSORS:
                raise ValueError(f"it has more than {_MAX_TENSORS} tensors")
            yield pair


def _block(data: bytes, handle: bytes) -> bytes:
    """The content of the block at a handle: offset and size."""
    offset, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    end = offset + size
    if size > _MAX_BLOCK_BYTES or end + 5 > len(data) - _FOOTER:
        raise ValueError("a block lies outside the file")
    if masked(crc32c(data[offset : end + 1])) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise ValueError("a block is damaged: its CRC differs")
    match data[end]:
        case 0:
            return data[offset:end]
        case 1:
            return uncompress(data[offset:end], limit=_MAX_BLOCK_BYTES)
    raise ValueError(f"compression {data[end]} is unknown")


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, in order; a key begins as the one before it does."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise ValueError("a block has no end")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        size, at = _varint(block, at)
        if shared > len(key) or at + fresh + size > end:
            raise ValueError("a key or value lies outside its block")
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + size]
        at += size


def _entry(value: bytes) -> Entry:
    fields = _fields(value)
    by_number = dict(fields)
    shape: tuple[int, ...] = ()
    for number, dimension in _fields(_message(by_number.get(2, b""))):
        if number == 2:
            shape += (_whole(dict(_fields(_message(dimension))).get(1, 0)),)
        if number == 3 or len(shape) > _MAX_RANK:
            raise ValueError(f"a shape is unknown or has more than {_MAX_RANK} dimensions")
    whole = {name: _whole(by_number.get(number, 0)) for number, name in _ENTRY.items()}
    return Entry(shape=shape, sliced=any(number == 7 for number, _ in fields), **whole)


_ENTRY = {1: "dtype", 3: "shard", 4: "offset", 5: "size", 6: "crc"}


def _fields(message: int | bytes) -> Fields:
    """Number and value of each field of a protocol buffer, in order."""
    content, at, found = _message(message), 0, Fields()
    while at < len(content):
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                value, at = _varint(content, at)
                found.append((tag >> 3, value))
            case 2:
                size, at = _varint(content, at)
                if at + size > len(content):
                    raise ValueError("a field lies outside its message")
                found.append((tag >> 3, content[at : at + size]))
                at += size
            case (1 | 5) as kind:
                size = 8 if kind == 1 else 4
                if at + size > len(content):
                    raise ValueError("a field lies outside its message")
                found.append((tag >> 3, int.from_bytes(content[at : at + size], "little")))
                at += size
            case kind:
                raise ValueError(f"a field has wire type {kind}")
    return found


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field holds a number instead of a message")
    return value


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int) or value >= 1 << 63:
        raise ValueError("a field holds no number from 0 on")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")
