"""The measurements of a benchmark, one process after another."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from electra.bench.grid import Job
from electra.bench.measure import LONGEST_REASON, Figures
from electra.fsio import read_json
from electra.progress import progress, say, scaled
from electra.train.interrupt import child_environment

POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A job and its figures, or why there are none."""

    job: Job
    figures: Figures | None = None
    error: str = ""


def run_all(jobs: Sequence[Job], *, title: str, rounds: int = 1) -> Iterator[list[Row]]:
    """The rows so far, after each measurement; one that fails is a row like the others.

    In several rounds each job has its turn in each, so that a machine that slows down does not slow one alone. What
    failed once is not tried again.
    """
    rows: list[Row] = []
    with progress(title, rounds * len(jobs)) as bar:
        for turn in range(rounds * len(jobs)):
            number, job = turn % len(jobs), jobs[turn % len(jobs)]
            if turn >= len(jobs) and rows[number].figures is None:
                continue
            row = run_job(job, tick=lambda done=turn, name=job.title: bar.update(done, name))  # type: ignore[misc]
            bar.update(turn + 1)
            say(f"{turn + 1}/{rounds * len(jobs)} {_line(row)}")
            if turn < len(jobs):
                rows.append(row)
            else:
                rows[number] = _joined(rows[number], row)
            yield list(rows)


def _joined(first: Row, second: Row) -> Row:
    """Two measurements of one job as one; where the second failed, so did the job."""
    one, two = first.figures, second.figures
    if one is None or two is None:
        return second
    stretches = [*one.stretches_ms, *two.stretches_ms]
    ms = statistics.median(stretches)
    speed = first.job.batch * first.job.length / ms * 1e3
    figures = replace(
        one,
        tokens_per_s=speed,
        ms_per_step=ms,
        stretches_ms=stretches,
        memory_gib=max(one.memory_gib, two.memory_gib),
        mfu=speed / one.roofline_tokens_per_s if one.roofline_tokens_per_s else None,
    )
    return Row(job=first.job, figures=figures)


def run_job(job: Job, *, tick: Callable[[], None] = lambda: None) -> Row:
    """One measurement in a process of its own; `tick` is called while it runs."""
    with tempfile.TemporaryDirectory(prefix="electra-bench-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log.txt"
        with open(log, "wb") as out:
            errors = None if os.environ.get("ELECTRA_DEBUG", "") not in ("", "0") else out
            command = [sys.executable, "-m", "electra.bench.measure", json.dumps(asdict(job)), str(result)]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=child_environment()
            )
            code = _ended(process, tick)
        if not result.is_file():
            return Row(job=job, error=_last_line(code, log))
        found = read_json(result)
    if "error" in found:
        return Row(job=job, error=found["error"])
    return Row(job=job, figures=Figures(**found))


def _ended(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> int:
    try:
        while True:
            tick()
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _last_line(code: int, log: Path) -> str:
    if code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{hint}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:LONGEST_REASON] if lines else f"ended with code {code}"


def _line(row: Row) -> str:
    if row.figures is None:
        return f"{row.job.title}: {row.error}"
    found = row.figures
    return f"{row.job.title}: {scaled(found.tokens_per_s)} tokens/s, {found.ms_per_step:.4g} ms/step"
