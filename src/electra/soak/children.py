"""Real `electra` processes, forked from one that has imported everything: a start costs milliseconds, not seconds."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

COMMANDS = ("prepare", "pretrain", "finetune", "glue", "export")
USED = (
    "electra.shards.build", "electra.pretrain", "electra.finetune.task_run", "electra.finetune.export",
    "electra.finetune.results_table", "electra.batches.epoch_plan", "electra.interop.continuation",
    "electra.ops.cpp.library", "torch._dynamo",
)  # fmt: skip
POLL_S = 0.0005


def import_everything() -> None:
    """Import what the commands use. Nothing may compute here: threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    for name in (*USED, *(f"electra.cli.{command}" for command in COMMANDS)):
        importlib.import_module(name)


@dataclass(slots=True)
class Child:
    """A process that runs a command; its output is in a file."""

    pid: int
    log: Path
    code: int | None = None
    """The exit code, or the negative number of the signal that ended it; None while it runs."""

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, *, most_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Return when it has ended, or `until` is true; False when the time is up before."""
        ends = time.monotonic() + most_s
        while self.poll() is None and not until():
            if time.monotonic() > ends:
                return False
            time.sleep(POLL_S)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.send(signal.SIGKILL)
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def start(
    arguments: Sequence[str], *, log: Path, fault: Callable[[], None] = lambda: None, cold: bool = False
) -> Child:
    """`electra` with these arguments as a process of its own; `fault` is called there first.

    A `cold` one imports everything itself, as a user's does, and has no fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    return Child(pid, log) if pid else _be_electra(arguments, log, fault, cold=cold)


def _be_electra(arguments: Sequence[str], log: Path, fault: Callable[[], None], *, cold: bool) -> NoReturn:
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts, whatever the campaign inherited
        if cold:
            os.execv(sys.executable, [sys.executable, "-m", "electra", *arguments])
        sys.argv = ["__main__.py", *arguments]  # what run.json calls a cold one, too
        fault()
        runpy.run_module("electra", run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
