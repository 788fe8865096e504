"""Damaged inputs of every format: each must be read, or refused in one line; never a traceback, never a hang."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from electra.errors import ElectraError
from electra.hardware import peak_resident_bytes
from electra.manifest import FILE, read_manifest, sum_of, write_manifest
from electra.soak.formats import Format, make_formats
from electra.soak.mutations import mutated
from electra.soak.report import Hang, Report, no_longer_than

HANG_S = 60
PAGES_FROM = 1000
"""Inputs from which on pages are drawn too, which takes seconds each."""


OUTCOMES = ("read", "refused", "traceback", "hang")


def run_inputs(count: int, *, seed: int = 0, only: int | None = None) -> Report:
    """Damage `count` inputs, one after the other, and read each; `only` repeats the one of this number."""
    began, report = time.monotonic(), Report(outcomes=OUTCOMES, bad=OUTCOMES[2:])
    with tempfile.TemporaryDirectory(prefix="electra-soak-") as folder:
        with contextlib.redirect_stderr(io.StringIO()):
            formats = make_formats(Path(folder), pages=count >= PAGES_FROM)
            for one in formats:
                one.read()  # undamaged, each is read
        whole = {one.path: one.path.read_bytes() for one in formats}
        for number in range(count) if only is None else (only,):
            _one(number, formats, whole, report, seed=seed)
    report.seconds, report.peak_bytes = time.monotonic() - began, peak_resident_bytes()
    return report


def _one(number: int, formats: Sequence[Format], whole: dict[Path, bytes], report: Report, *, seed: int) -> None:
    chance = random.Random(f"{seed} {number}")
    (chosen,) = chance.choices(formats, [one.weight for one in formats])
    what, content = mutated(whole[chosen.path], chance)
    _write_listed(chosen.path, content)
    problem: BaseException | None = None
    try:
        with no_longer_than(HANG_S), contextlib.redirect_stderr(io.StringIO()):
            chosen.read()
    except (Exception, Hang) as error:
        problem = error
    outcome = _outcome(problem)
    report.counts.setdefault(chosen.name, Counter())[outcome] += 1
    if outcome in ("traceback", "hang"):
        assert problem is not None
        where = traceback.extract_tb(problem.__traceback__)[-1]
        reason = f"{type(problem).__name__}: {problem}"[:200]
        report.failures.append(f"--only {number}: {chosen.name}, {what}: {reason} ({where.filename}:{where.lineno})")
    _write_listed(chosen.path, whole[chosen.path])


def _write_listed(path: Path, content: bytes) -> None:
    """Put content at `path` and its sum into the manifest that lists it: what is under test comes after the sums."""
    path.write_bytes(content)
    for folder in path.parents[:2]:
        sums = read_manifest(folder) if path.name != FILE else None
        name = path.relative_to(folder).as_posix()
        if sums is not None and name in sums.files:
            write_manifest(folder, {**sums.files, name: sum_of(path)})


def _outcome(problem: BaseException | None) -> str:
    if problem is None:
        return "read"
    if isinstance(problem, Hang):
        return "hang"
    if isinstance(problem, ElectraError):
        return "refused" if "\n" not in str(problem) else "traceback"
    return "refused" if isinstance(problem, OSError) else "traceback"  # the command line makes one line of it
