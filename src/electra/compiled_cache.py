"""Machine code that was compiled here, kept between runs: only what this user wrote, whole, is ever loaded.

The folder is this user's alone (0700), each file has its sha256 beside it, and both must be this user's own. A folder
that cannot be trusted, such as another user's under a shared XDG_CACHE_HOME, is not used: code then lives in a private
temporary folder, for this process.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from electra.fsio import open_file, write_atomic
from electra.progress import say

MAX_BYTES = 256 << 20
_SUM = ".sha256"


def cache_path(stem: str, made_from: str, suffix: str) -> Path:
    """Where what was made from this text is kept between runs."""
    return _folder() / f"{stem}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}{suffix}"


def read_code(path: Path) -> bytes | None:
    """The bytes that `write_code` put there; None where there are none, damaged ones, or another user's."""
    fd = _open_whole(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()


def write_code(path: Path, code: bytes) -> None:
    """Keep the bytes with their sha256: written aside, synced, renamed."""
    write_atomic(path, code)
    write_atomic(path.with_name(path.name + _SUM), hashlib.sha256(code).hexdigest().encode())


def load_library(path: Path) -> ctypes.CDLL | None:
    """The shared library that `write_code` put there, loaded; None where `read_code` gives none.

    What is loaded is the very file that was checked, whatever happens to its name meanwhile.
    """
    fd = _open_whole(path)
    return None if fd is None else ctypes.CDLL(f"/proc/self/fd/{fd}")  # stays open: the loader knows files by name


def _open_whole(path: Path) -> int | None:
    """A file of this user whose content has the sum beside it; None for any other."""
    try:
        with open_file(path.with_name(path.name + _SUM)) as file:
            known = file.read(64).decode("ascii", "replace") if _is_own(file.fileno()) else ""
        with open_file(path) as file:
            data = file.read(MAX_BYTES + 1)
            if _is_own(file.fileno()) and len(data) <= MAX_BYTES and hashlib.sha256(data).hexdigest() == known:
                return os.dup(file.fileno())
    except OSError:
        return None
    return None


def _is_own(fd: int) -> bool:
    """Whether a file or folder is this user's and nobody else can write to it."""
    found = os.fstat(fd)
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022


def _folder() -> Path:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, 0o700)  # an older version left it open to others
                if _is_own(fd):
                    return folder
            return _private_folder(f"{folder} belongs to another user, or to all")
        finally:
            os.close(fd)
    except (OSError, RuntimeError) as error:  # a home that is full, closed or not there
        return _private_folder(str(error).partition("\n")[0])


@functools.cache
def _private_folder(reason: str) -> Path:
    """A folder for this process alone; what is compiled into it is compiled again at the next start."""
    folder = tempfile.mkdtemp(prefix="electra-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    say(f"warning: no cache for compiled code: {reason}; compiling at every start")
    return Path(folder)
