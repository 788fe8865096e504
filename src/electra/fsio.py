"""Files that are whole or absent: write aside, fsync, rename, fsync the folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def seam(name: str) -> None:
    """Called between the parts of a commit; fault-injection tests replace it to die there."""


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    try:
        with open(aside, "wb") as out:
            out.write(data)
            seam("file-written")
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
        seam("file-renamed")
        fsync_dir(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def cache_path(stem: str, made_from: str, suffix: str) -> Path:
    """Where what was made from this text is kept between runs; RuntimeError where there is no home."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra"
    return folder / f"{stem}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}{suffix}"


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def commit_dir(path: Path) -> Iterator[Path]:
    """Yield a folder aside; on success it becomes `path` at once, on an exception it is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    aside.mkdir()
    try:
        yield aside
        seam("dir-written")
        for entry in sorted(aside.rglob("*")):
            if entry.is_dir():
                fsync_dir(entry)
            elif entry.is_file():
                fsync_file(entry)
        fsync_dir(aside)
        seam("dir-synced")
        os.replace(aside, path)
        seam("dir-renamed")
        fsync_dir(path.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process, until it ends in whatever way; BlockingIOError where another holds it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system that cannot lock folders
            pass
        yield
    finally:
        os.close(fd)


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
    with open(path, "rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def safe_join(folder: Path, name: str) -> Path:
    """`folder / name`, refused when the name would leave the folder."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"unsafe file name {name!r}")
    return path
