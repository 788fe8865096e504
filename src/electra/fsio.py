"""Files that are whole or absent: write aside, fsync, rename, fsync the folder; reading has limits.

A file from elsewhere may have any size, or be a FIFO that never ends: each is one line that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from electra.errors import ConfigError, DataError, ElectraError
from electra.jsontext import FileError, parse_json, parse_row

MAX_JSON_BYTES = 64 << 20
"""Of a file; a reader of larger ones (SQuAD, metrics.jsonl) names its own limit."""
DISK_ERRORS = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some space, or write to another disk",
    errno.EFBIG: "raise the limit on file sizes, ulimit -f",
    errno.EROFS: "write to another disk",
}
"""What a disk says that does not take a file, and what to do."""
NOTES = (".log", ".json")
"""Files that may lie in a folder of any kind before it is one."""


def seam(name: str) -> None:
    """Called between the parts of a commit; fault-injection tests replace it to die there."""


def fsync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        with open(aside, "wb") as out:
            out.write(data)
            seam("file-written")
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
        seam("file-renamed")
        fsync(path.parent)
    except BaseException as problem:
        aside.unlink(missing_ok=True)
        _name(problem, aside, path)
        raise


def write_json(path: Path, value: Any) -> None:
    """Put a value at `path` as JSON, as `json_bytes` has it."""
    write_atomic(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A value as JSON; a number that is not finite becomes null, half a character a question mark."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="replace")


def json_lines(values: Iterable[Any]) -> bytes:
    """Each value as JSON on a line of its own."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def append_synced(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file, and wait until the disk has it."""
    with open(path, "ab") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened to read; OSError for a FIFO, a device or a folder: reading one might never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            reason = "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file"
            raise OSError(errno.EINVAL, reason, str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_bytes(path: Path, *, most: int) -> bytes:
    """The content of a regular file of at most this many bytes; OSError for any other."""
    with open_file(path) as file:
        # Without a number: read(most) asks for as much memory, however small the file is.
        data = file.read() if os.fstat(file.fileno()).st_size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EFBIG, f"is larger than {_size(most)}", str(path))
    return data


def read_json(path: Path, *, most: int = MAX_JSON_BYTES, error: FileError = DataError, fix: str = "") -> Any:
    """The value in a JSON file of at most this many bytes; `error` with the file and the reason for any other."""
    try:
        data = read_bytes(path, most=most)
    except OSError as problem:
        raise error(path, f"cannot be read: {problem.strerror or problem}", fix=fix) from problem
    return parse_json(data, where=path, error=error, fix=fix)


def read_object(path: Path, *, error: FileError = DataError, fix: str = "") -> dict[str, Any]:
    """`read_json` where the file must hold an object."""
    value = read_json(path, error=error, fix=fix)
    if not isinstance(value, dict):
        raise error(path, "is not a JSON object", fix=fix)
    return value


def finite(value: Any) -> Any:
    """A value with null in place of NaN and infinity, which are not JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def _size(count: int) -> str:
    unit = next(((shift, name) for shift, name in ((20, "MiB"), (10, "KiB")) if count >= 8 << shift), (0, "bytes"))
    return f"{count >> unit[0]} {unit[1]}"


def read_json_lines(path: Path, *, most: int = MAX_JSON_BYTES) -> list[dict[str, Any]]:
    """The objects of a file that holds one a line; DataError names the first line that is none."""
    try:
        lines = read_bytes(path, most=most).split(b"\n")
    except OSError as problem:
        raise DataError(path, f"cannot be read: {problem.strerror or problem}") from problem
    return [parse_row(line, where=path, number=number) for number, line in enumerate(lines, 1) if line.strip()]


def require_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be written, before anything is computed for it; changes nothing."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    reason = "" if there.is_dir() else "Not a directory"
    if not reason and not os.access(there, os.W_OK | os.X_OK):
        reason = "Permission denied"
    if reason:
        raise DataError(folder, f"cannot be written: {reason}", fix="choose another --out")


def require_own(folder: Path, *own: str) -> None:
    """Refuse a folder that holds more than these, hidden files, logs and notes in JSON: it is something else's."""
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name not in own and not name.startswith(".") and not name.endswith(NOTES)]
    if others:
        listing = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise ConfigError("--out", f"{folder} holds other files: {listing}", fix="choose a new folder")


@contextlib.contextmanager
def commit_dir(path: Path) -> Iterator[Path]:
    """Yield a folder aside; on success it becomes `path` at once, on an exception it is gone.

    What a killed process left aside of the same `path` is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    with _held_aside(path) as aside:
        try:
            yield aside
            seam("dir-written")
            for entry in sorted(aside.rglob("*")):
                if entry.is_dir() or entry.is_file():
                    fsync(entry)
            fsync(aside)
            seam("dir-synced")
            os.replace(aside, path)
            seam("dir-renamed")
            fsync(path.parent)
        except BaseException as problem:
            shutil.rmtree(aside, ignore_errors=True)
            _name(problem, aside, path)
            raise


def _name(problem: BaseException, aside: Path, path: Path) -> None:
    """Let a problem name the file or folder that was to be, not the one aside; a full disk names none by itself."""
    if isinstance(problem, OSError):
        if problem.filename is not None:
            problem.filename = str(problem.filename).replace(str(aside), str(path))
        elif problem.errno in DISK_ERRORS:
            problem.filename = str(path)
    elif isinstance(problem, ElectraError):
        problem.args = (str(problem).replace(str(aside), str(path)),)


def _aside(path: Path) -> Path:
    return path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def _held_aside(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, locked as long as this process writes it: a lock ends with its process."""
    while True:
        aside = _aside(path)
        aside.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(only_one(aside))
            except (BlockingIOError, FileNotFoundError):  # taken for abandoned in the moment before it was locked
                continue
            if aside.exists():
                yield aside
                return


def _remove_abandoned(path: Path) -> None:
    """Remove the folders beside `path` that `commit_dir` made for it and that no living process holds."""
    ours = re.compile(re.escape(f".tmp-{path.name}-") + "[0-9a-f]{8}")
    try:
        there = list(path.parent.iterdir())
    except OSError:  # a folder to write into, not to list
        return
    for entry in there:
        if ours.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
            with contextlib.suppress(OSError), only_one(entry, or_fail=True):
                shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def only_one(folder: Path, *, or_fail: bool = False) -> Iterator[None]:
    """Hold `folder` for this process, until it ends in whatever way; BlockingIOError where another holds it.

    A file system that cannot lock folders lets all pass, or with `or_fail` none: OSError.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            if or_fail:
                raise
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def in_turn(lock: Path) -> Iterator[None]:
    """Wait for other processes that hold this lock file; nobody waits on a file system that cannot lock."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "wb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_folder(path: Path) -> None:
    """Remove a folder; a kill on the way leaves no half of it under its name."""
    gone = _aside(path)
    with contextlib.suppress(OSError):
        os.rename(path, gone)
        seam("renamed-for-removal")
        shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted writer left aside in `folder`."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".tmp-"):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def safe_join(folder: Path, name: str) -> Path:
    """`folder / name`, refused when the name would leave the folder."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"unsafe file name {name!r}")
    return path
