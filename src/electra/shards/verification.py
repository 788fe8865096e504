"""Whether prepared data is what was written: hashed once, remembered by size and time, hashed again while a run trains.

What was found whole is remembered in the user's cache folder, so that opening the data again costs a look at every
file. Silent damage to a disk changes neither size nor time: `Background` reads everything again beside the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.fsio import open_file, read_object, write_json
from electra.hardware import cores
from electra.manifest import Manifest
from electra.progress import progress

MEMORY = "verified.json"
MAX_FOLDERS = 64
"""Folders that are remembered; the one not used for longest is forgotten first."""
LARGE_BYTES = 1 << 30  # hashing more takes seconds: it is shown
THREADS = 4
_BLOCK = 1 << 20


def verify_once(sums: Manifest) -> bool:
    """Refuse damaged data; True where every file was hashed now, False where it is remembered as whole."""
    known, times = _Memory(), _times(sums)
    if known.has(sums, times):
        return False
    total = sum(one.bytes for one in sums.files.values())
    shown = progress("Verifying the data", total=float(total), unit="B") if total >= LARGE_BYTES else None
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(shown) if shown else None
        pool = stack.enter_context(ThreadPoolExecutor(min(THREADS, cores())))
        done = 0
        for name, found in zip(sums.files, pool.map(lambda name: _sha256(sums, name), sums.files), strict=True):
            sums.compare(name, found)
            done += sums.files[name].bytes
            if bar is not None:
                bar.update(done)
    known.add(sums, times)
    return True


class Background:
    """A thread that hashes every file of the data once."""

    def __init__(self, sums: Manifest) -> None:
        self._sums = sums
        self._problem: DataError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="electra-verify", daemon=True)
        self._thread.start()

    def problem(self, *, wait: bool = False) -> DataError | None:
        """What is wrong with the data, as far as it has been read; with `wait`, all of it."""
        if wait:
            self._thread.join()
        return self._problem

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            for name in self._sums.files:
                found = _sha256(self._sums, name, over=self._over)
                if self._over.is_set():
                    return
                self._sums.compare(name, found)
        except DataError as problem:
            _Memory().forget(self._sums)
            self._problem = problem


def trained_on_damaged(problem: DataError | None, *, began: int, saved: int) -> DataError:
    """The error of a run on damaged data that began at a step and saved last at another; no `problem`: elsewhere's."""
    what = problem or "another process found damaged data; its message names the file"
    unsaved = f"nothing was saved after step {began}"
    trained = f"the checkpoints after step {began} were trained on it: remove them"
    return DataError(what, unsaved if saved == began else trained, fix="restore the file, then run the same command")


def _sha256(sums: Manifest, name: str, *, over: threading.Event | None = None) -> str:
    digest = hashlib.sha256()
    path = sums.folder / name
    try:
        with open_file(path) as file:
            while (block := file.read(_BLOCK)) and not (over and over.is_set()):
                digest.update(block)
    except OSError as problem:
        raise DataError(path, f"cannot be read: {problem.strerror or problem}", fix=sums.fix) from problem
    return digest.hexdigest()


def _times(sums: Manifest) -> dict[str, int]:
    """When each file was last written to, in nanoseconds."""
    try:
        return {name: (sums.folder / name).stat().st_mtime_ns for name in sums.files}
    except OSError as problem:
        raise DataError(problem.filename, f"cannot be read: {problem.strerror}", fix=sums.fix) from problem


class _Memory:
    """verified.json in the cache folder: which folders were found whole, with which sums and times."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, RuntimeError, DataError):  # without a usable home nothing is remembered
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra"
            self._path = folder / MEMORY
            self._known = read_object(self._path) if self._path.exists() else {}

    def has(self, sums: Manifest, times: dict[str, int]) -> bool:
        return self._known.get(_key(sums)) == _state(sums.files, times)

    def add(self, sums: Manifest, times: dict[str, int]) -> None:
        self._known = {key: value for key, value in self._known.items() if key != _key(sums)}
        self._known[_key(sums)] = _state(sums.files, times)
        self._write()

    def forget(self, sums: Manifest) -> None:
        if self._known.pop(_key(sums), None) is not None:
            self._write()

    def _write(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_json(self._path, dict(list(self._known.items())[-MAX_FOLDERS:]))


def _key(sums: Manifest) -> str:
    """A name for a folder that does not say where it is."""
    return hashlib.sha256(os.fsencode(sums.folder.resolve())).hexdigest()[:32]


def _state(files: Any, times: dict[str, int]) -> str:
    """One sum over the sizes, sums and times of all files."""
    parts = [f"{name} {files[name].bytes} {files[name].sha256} {time}" for name, time in sorted(times.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
