"""Plain bytes out of a file that may be compressed, a bounded amount at a time."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from electra.errors import ConfigError, DataError, pip_install

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

_READ_BYTES = 1 << 17
_ZSTD_READ_BYTES = 1 << 10  # a kilobyte of zstd unpacks to 32 MB at most; its decoder has no limit of its own
_MEMORY_LIMIT = 1 << 27


def plain_suffix(path: Path) -> str:
    """The suffix without that of a compression, in lower case: `.csv` for `rows.CSV.gz`; empty where there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


class _Decoder(Protocol):
    """What bz2's and lzma's decompressors have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Counted(io.RawIOBase):
    """A file that remembers how far it was read and the sha256 of that."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  closed by `close`
        self.position = 0
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self.position += count
        self.digest.update(memoryview(buffer)[:count])
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class Stream:
    """The unpacked bytes of a file; `read(n)` gives n of them until the end. Damage is a DataError."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.name = name
        try:
            self._raw = _Counted(path)
        except OSError as error:
            raise DataError(name, f"cannot be read: {error.strerror or error}") from error
        self._pieces = self._unpack(path.suffix.lower())
        self._rest = b""

    @property
    def position(self) -> int:
        """Bytes of the file, as stored, that were read so far."""
        return self._raw.position

    @property
    def sha256(self) -> str:
        """Of the file as stored; final once `read` has returned nothing."""
        return self._raw.digest.hexdigest()

    def read(self, count: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < count:
            piece = self._next()
            if not piece:
                break
            parts.append(piece)
            have += len(piece)
        joined = b"".join(parts)
        self._rest = joined[count:]
        return joined[:count]

    def close(self) -> None:
        self._raw.close()

    def _next(self) -> bytes:
        try:
            return next(self._pieces, b"")
        except EOFError as error:
            raise DataError(self.name, "the compressed file ends too early", fix="fetch or pack it again") from error
        except (OSError, zlib.error, lzma.LZMAError) as error:
            raise DataError(self.name, f"cannot be read: {error}", fix="fetch or pack it again") from error

    def _unpack(self, suffix: str) -> Iterator[bytes]:
        if suffix == ".gz":
            with gzip.GzipFile(fileobj=self._raw) as unpacked:
                yield from iter(lambda: unpacked.read(_READ_BYTES), b"")
            self._drain()
        elif suffix == ".bz2":
            yield from self._decode(bz2.BZ2Decompressor)
        elif suffix == ".xz":
            yield from self._decode(lambda: lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT))
        elif suffix == ".zst":
            yield from self._decode_zstd()
        else:
            yield from iter(lambda: self._raw.read(_READ_BYTES) or b"", b"")

    def _drain(self) -> None:
        while self._raw.read(_READ_BYTES):
            pass

    def _decode(self, start: Callable[[], _Decoder]) -> Iterator[bytes]:
        decoder: _Decoder | None = None
        data = b""
        while data := data or self._raw.read(_READ_BYTES) or b"":
            if decoder is None:
                data = data.lstrip(b"\0")  # padding between streams
                if not data:
                    continue
                decoder = start()
            unpacked = decoder.decompress(data, _READ_BYTES)
            while unpacked:
                yield unpacked
                unpacked = b"" if decoder.eof else decoder.decompress(b"", _READ_BYTES)
            data = b""
            if decoder.eof:
                data, decoder = decoder.unused_data, None
        if decoder is not None:
            raise EOFError

    def _decode_zstd(self) -> Iterator[bytes]:
        try:
            import zstandard
        except ImportError as error:
            raise ConfigError(self.name, f"reading .zst files needs: {pip_install('data')}") from error
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MEMORY_LIMIT)
        decoder = None
        data = b""
        try:
            while data := data or self._raw.read(_ZSTD_READ_BYTES) or b"":
                decoder = decoder or unpacker.decompressobj()
                unpacked = decoder.decompress(data)
                data = b""
                if decoder.eof:
                    data, decoder = decoder.unused_data, None
                if unpacked:
                    yield unpacked
        except zstandard.ZstdError as error:
            raise DataError(self.name, f"cannot be read: {error}", fix="fetch or pack it again") from error
        if decoder is not None:
            raise EOFError
