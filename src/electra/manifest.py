"""manifest.json: the size and sha256 of every file of a folder. One format for every kind of folder, one reader.

`commit_folder` writes a new folder with its manifest, whole or not at all. `commit_files` replaces files of a folder
together with their sums: the new files are staged as `.next-SUM-NAME`, the manifest is replaced, which is the commit,
and then each takes its place. Whoever finds a staged file that the manifest lists finishes the commit, also a reader
beside the writer: the sum in the name keeps it from taking the file of a later commit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from electra.errors import CheckpointError
from electra.fsio import commit_dir, fsync, read_object, safe_join, seam, sha256_file, write_atomic, write_json
from electra.jsontext import FileError
from electra.progress import say
from electra.records import read_record

FILE = "manifest.json"
FORMAT = 1
COPY_AGAIN = "restore it from a copy"
_NEXT = ".next-"


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Listing:
    format: int
    files: dict[str, FileSum]

    def __post_init__(self) -> None:
        for name in self.files:
            safe_join(Path(), name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The sums of a folder's files; what does not fit them is an `error` with the `fix`."""

    folder: Path
    files: Mapping[str, FileSum]
    error: FileError = CheckpointError
    fix: str = COPY_AGAIN

    def check_sizes(self) -> None:
        """Refuse a folder in which a file is missing or has another size."""
        for name in self.files:
            self._check_size(name)

    def verify(self, *names: str) -> None:
        """Refuse a folder in which one of these files, by default any, is not the one that was written."""
        for name in names or self.files:
            try:
                self._verify(name)
            except self.error:
                self._verify_now(name)

    def _verify_now(self, name: str) -> None:
        """The same by the manifest of now: a writer in another process may replace both while they are compared."""
        while True:
            written = _identity(self.folder)
            now = read_manifest(self.folder, error=self.error, fix=self.fix) or self
            try:
                return now._verify(name)
            except self.error:
                if _identity(self.folder) == written:
                    raise

    def _verify(self, name: str) -> None:
        if name not in self.files:
            raise self.error(self.folder / FILE, f"does not list {name}", fix=self.fix)
        if _staged(self.folder, name, self.files[name]).exists():
            finish(self.folder)
        self._check_size(name)
        path = self.folder / name
        try:
            found = sha256_file(path)
        except OSError as problem:
            raise self.error(path, f"cannot be read: {problem.strerror or problem}", fix=self.fix) from problem
        self.compare(name, found)

    def compare(self, name: str, sha256: str) -> None:
        """Refuse a file that has another sum."""
        if sha256 != self.files[name].sha256:
            reason = "is damaged: its sha256 is not the recorded one"
            raise self.error(self.folder / name, reason, fix=self.fix)

    def below(self, part: str) -> list[str]:
        """The names of files in a part of the folder."""
        return [name for name in self.files if name.startswith(f"{part}/")]

    def _check_size(self, name: str) -> None:
        path, size = self.folder / name, self.files[name].bytes
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise self.error(path, "is missing", fix=self.fix) from None
        except OSError as problem:
            raise self.error(path, f"cannot be read: {problem.strerror or problem}", fix=self.fix) from problem
        if found != size:
            raise self.error(path, f"has {found} bytes, not the {size} that were written", fix=self.fix)


def read_manifest(
    folder: Path, *, error: FileError = CheckpointError, newer: FileError | None = None, fix: str = COPY_AGAIN
) -> Manifest | None:
    """The manifest of a folder; None where it has none, `newer` (or `error`) for one of a later format."""
    path = folder / FILE
    if not path.is_file():
        return None
    value = read_object(path, error=error, fix=fix)
    version = value.get("format")
    if isinstance(version, int) and version > FORMAT:
        reason = f"format {version} is newer than this program's {FORMAT}"
        raise (newer or error)(path, reason, fix="upgrade electra")
    if version != FORMAT or isinstance(version, bool):
        raise error(path, f"format is {str(version)[:40]}, not {FORMAT}", fix=fix)
    listing = read_record(_Listing, value, where=path, error=error, fix=fix)
    return Manifest(folder=folder, files=listing.files, error=error, fix=fix)


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells one manifest of a folder from the next, also where that lists the same."""
    try:
        found = (folder / FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def read_or_say(folder: Path) -> Manifest | None:
    """The manifest of a folder; where it has none, that is said, once."""
    found = read_manifest(folder)
    if found is None:
        _say_unverified(folder.resolve(), folder)
    return found


@functools.cache
def _say_unverified(resolved: Path, shown: Path) -> None:
    say(f"{shown}: has no {FILE}, as written before version 0.3: it is read without being verified")


def sum_of(path: Path) -> FileSum:
    """The size and sha256 of a file."""
    return FileSum(path.stat().st_size, sha256_file(path))


def sums_below(folder: Path, part: str = ".") -> dict[str, FileSum]:
    """The sums of all files in a folder, or in a part of it, by their names in the folder."""
    files = sorted(path for path in (folder / part).rglob("*") if path.is_file() and path != folder / FILE)
    return {path.relative_to(folder).as_posix(): sum_of(path) for path in files}


def write_manifest(folder: Path, files: Mapping[str, FileSum], **about: Any) -> None:
    """Put the manifest with these sums into a folder; `about` are further keys, for people."""
    listing = {name: asdict(one) for name, one in sorted(files.items())}
    write_json(folder / FILE, {"format": FORMAT, **about, "files": listing})


@contextlib.contextmanager
def commit_folder(path: Path, **about: Any) -> Iterator[Path]:
    """Yield a folder aside; on success it gets its manifest and becomes `path` at once."""
    with commit_dir(path) as aside:
        yield aside
        write_manifest(aside, sums_below(aside), **about)


def commit_files(folder: Path, contents: Mapping[str, bytes], *, others: Mapping[str, FileSum] | None = None) -> None:
    """Replace files of a folder and its manifest as one: after a kill at any moment, all are as before or as after.

    The manifest keeps what it listed and adds `others`, which are there already. Files appear in the order given.
    """
    finish(folder, discard=True)
    before = read_manifest(folder)
    listed = {**(before.files if before else {}), **(others or {})}
    sums = {name: FileSum(len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}
    for name, data in contents.items():
        write_atomic(_staged(folder, name, sums[name]), data)
    seam("files-staged")
    write_manifest(folder, {**listed, **sums})
    seam("files-listed")
    for name in contents:
        with contextlib.suppress(FileNotFoundError):  # a reader finished the commit
            os.replace(_staged(folder, name, sums[name]), folder / name)
        seam("file-replaced")
    fsync(folder)


def _staged(folder: Path, name: str, its: FileSum) -> Path:
    return folder / f"{_NEXT}{its.sha256[:16]}-{name}"


def finish(folder: Path, *, discard: bool = False) -> None:
    """Put staged files that the manifest lists into their place; `discard` removes others, for the folder's holder."""
    staged = sorted(folder.glob(f"{_NEXT}*"))
    listed = read_manifest(folder) if staged else None
    for path in staged:
        name = path.name.removeprefix(_NEXT).partition("-")[2]
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if listed is not None and listed.files.get(name) == sum_of(path):
                os.replace(path, folder / name)
            elif discard:
                path.unlink()
