"""One bit of one file flipped, in every kind of folder: the folder is refused, or nothing that comes of it differs.

Half of the flips leave the file's time alone, as a disk that decays does; the other half look like a write.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from electra.errors import ElectraError
from electra.hardware import peak_resident_bytes
from electra.soak.folders import Folder, make_folders
from electra.soak.report import Hang, Report, no_longer_than

HANG_S = 120
OUTCOMES = ("refused", "identical", "different", "traceback", "hang")


def run_flips(count: int, *, seed: int = 0, only: int | None = None) -> Report:
    """Flip `count` bits, one after the other, and use the folder each time; `only` repeats the one of this number."""
    began, report = time.monotonic(), Report(outcomes=OUTCOMES, bad=OUTCOMES[2:])
    with tempfile.TemporaryDirectory(prefix="electra-soak-") as home:
        with contextlib.redirect_stderr(io.StringIO()):
            folders = make_folders(Path(home))
            expected = {one.name: _used(one, Path(home)) for one in folders}
        for number in range(count) if only is None else (only,):
            folder = folders[number % len(folders)]
            _one(number, folder, expected[folder.name], report, home=Path(home), seed=seed)
    report.seconds, report.peak_bytes = time.monotonic() - began, peak_resident_bytes()
    return report


def _one(number: int, folder: Folder, expected: object, report: Report, *, home: Path, seed: int) -> None:
    chance = random.Random(f"{seed} {number}")
    path = chance.choice(sorted(one for one in folder.path.rglob("*") if one.is_file() and one.stat().st_size))
    at, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
    decays = chance.random() < 0.5
    problem: BaseException | None = None
    with _flipped(path, at, bit, decays=decays):
        try:
            with no_longer_than(HANG_S), contextlib.redirect_stderr(io.StringIO()):
                outcome = "identical" if _used(folder, home) == expected else "different"
        except ElectraError as error:
            outcome = "refused" if "\n" not in str(error) else "traceback"
            problem = error
        except (Exception, Hang) as error:
            outcome, problem = "hang" if isinstance(error, Hang) else "traceback", error
    report.counts.setdefault(folder.name, Counter())[outcome] += 1
    if outcome in report.bad:
        where = traceback.extract_tb(problem.__traceback__)[-1] if problem is not None else None
        reason = f"{type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"[:300] if where else ""
        name = path.relative_to(folder.path).as_posix()
        report.failures.append(f"--only {number}: {folder.name}, {name}, byte {at}, bit {bit}: {outcome} {reason}")


def _used(folder: Folder, home: Path) -> object:
    """What comes of a folder; one that its use writes to is copied first, times and all."""
    if not folder.written:
        return folder.use(folder.path)
    with tempfile.TemporaryDirectory(dir=home) as aside:
        copy = Path(aside) / folder.path.name
        shutil.copytree(folder.path, copy)
        return folder.use(copy)


@contextlib.contextmanager
def _flipped(path: Path, at: int, bit: int, *, decays: bool) -> Iterator[None]:
    times = path.stat()
    _flip(path, at, bit)
    if decays:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        yield
    finally:
        _flip(path, at, bit)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _flip(path: Path, at: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
