"""What surrounds a preparation: one at a time in a folder, stoppable at any moment, disk trouble in one line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra.errors import ConfigError, DataError, Resumable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn a failed write into a DataError; sources report their own troubles before they get here."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            fix = "free some space and run the same command again: finished parts are kept"
            raise DataError(folder, "the disk is full", fix=fix) from error
        reason = (error.strerror or str(error)).lower()
        raise DataError(folder, f"cannot be written: {reason}", fix="choose another --out") from error


@contextlib.contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work as Resumable."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt as error:
        message = f"{folder}: stopped; finished parts are kept, the same command continues"
        raise Resumable(message) from error
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def lock(work: Path, *, number: int, total: int) -> Iterator[None]:
    """Be the only process with this part of the work; one that does everything is alone."""
    mine = _lock_file(work, number=number, total=total)
    with open(mine, "w") as held:
        others = work.glob("*.lock") if total == 1 else [mine, work / "worker-1-of-1.lock"]
        for path in {mine, *others}:
            if path.exists() and not _free(path):
                raise ConfigError(str(work.parent), "another process is preparing data here", fix="wait, or stop it")
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def alone(work: Path, *, number: int, total: int) -> bool:
    """Whether no process but this worker's is preparing data here."""
    mine = _lock_file(work, number=number, total=total)
    return all(path == mine or _free(path) for path in work.glob("*.lock"))


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether this process is the one that may go on; others get False while it does."""
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(open(path, "w"))
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            yield False
        else:
            yield True


def _lock_file(work: Path, *, number: int, total: int) -> Path:
    return work / f"worker-{number + 1}-of-{total}.lock"


def _free(path: Path) -> bool:
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
