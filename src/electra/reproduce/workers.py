"""Work side by side: one process each, started by a module of ours, all stopped together."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import hardware
from electra.errors import ElectraError, Resumable
from electra.train.interrupt import child_environment, stop_on_signals

POLL_S = 0.3
PATIENCE_S = 120.0  # for a worker to save what it has after it was asked to stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One process: `python -m MODULE ARGUMENTS`, its output in a log file of its name."""

    name: str
    arguments: list[str]
    module: str = "electra"


class _Failed(ElectraError):
    """A worker's last line of output, with its exit code."""

    def __init__(self, line: str, code: int) -> None:
        self.exit_code = code
        super().__init__(line)


def side_by_side(workers: Sequence[Worker], *, logs: Path, together: int, gpus: int = 0) -> Iterator[str]:
    """Run all workers, `together` at a time; the name of each when it is done. Of several GPUs each gets one.

    The first failure stops the others, after they saved; so does a signal to this process.
    """
    logs.mkdir(parents=True, exist_ok=True)
    threads = _threads(min(together, len(workers)))
    waiting = list(workers)
    running: dict[str, subprocess.Popen[bytes]] = {}
    places: dict[str, int] = {}
    with stop_on_signals() as stop:
        try:
            while waiting or running:
                while waiting and len(running) < together and not stop:
                    worker = waiting.pop(0)
                    places[worker.name] = min(set(range(together)) - {places[name] for name in running})
                    running[worker.name] = _start(worker, logs, threads | _visible(places[worker.name], gpus))
                time.sleep(POLL_S)
                if stop:
                    raise Resumable(f"stopped by {stop.reason}; run the same command to continue")
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    code = running.pop(name).returncode
                    if code:
                        raise _failure(name, code, logs / f"{name}.txt")
                    yield name
        finally:
            _end(list(running.values()))


def _threads(together: int) -> dict[str, str]:
    """What gives each of so many processes its share of the cores: with all of them each, they only wait for others."""
    if together < 2:
        return {}
    known = os.environ.get("OMP_NUM_THREADS", "")
    mine = int(known) if known.isdecimal() and int(known) else hardware.cores()
    return {"OMP_NUM_THREADS": str(max(1, mine // together)), "TOKENIZERS_PARALLELISM": "false"}


def _visible(place: int, gpus: int) -> dict[str, str]:
    """What tells a process which of several GPUs is its own."""
    if gpus < 2:
        return {}
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    mine = place % gpus
    return {"CUDA_VISIBLE_DEVICES": known[mine] if len(known) == gpus else str(mine)}


def _start(worker: Worker, logs: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", worker.module, *worker.arguments]
    with open(logs / f"{worker.name}.txt", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment() | environment,
        )


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    for process in running:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failure(name: str, code: int, log: Path) -> ElectraError:
    if code == Resumable.exit_code:
        return Resumable(f"{name} was stopped; run the same command to continue")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("electra: error: ") if lines else "it printed nothing"
    return _Failed(f"{name}: {reason} (all of it: {log})", code if code > 0 else 1)
