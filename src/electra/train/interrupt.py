"""Signals that ask for a clean stop: finish the step, save, exit 75."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from electra.errors import Resumable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PARENT = "ELECTRA_PARENT"
"""Environment variable: the id of the process that this one ends with."""
LOOK_S = 1.0


class Stop:
    """Whether a stop was asked for, and by what."""

    reason = ""

    def __bool__(self) -> bool:
        return bool(self.reason)

    def at(self, step: int) -> Resumable:
        """The error to end a run with that has saved this step."""
        reason = self.reason or "a signal to another process"
        return Resumable(f"stopped by {reason} at step {step}, saved; run the same command to continue")


EARLIER = Stop()
"""What a signal asked of the command before training began: an import may swallow the exception that it raised."""


def child_environment() -> dict[str, str]:
    """The environment for a process that is not to outlive this one."""
    return os.environ | {PARENT: str(os.getpid())}


def end_with_parent() -> None:
    """Ask this process to stop, as by a signal, when the one that gave it a `child_environment` is gone.

    A parent may be gone before this is called, so its id comes from the environment, where it is not left: what this
    process starts has another parent.
    """
    parent = os.environ.pop(PARENT, "")

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent.isdecimal():
        threading.Thread(target=watch, name="electra-parent", daemon=True).start()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """A `Stop` that the first signal sets; a second Ctrl-C ends the program at once.

    Outside the main thread, where Python takes no signals, nothing sets it.
    """
    stop = Stop()
    stop.reason = EARLIER.reason

    def ask(number: int, frame: FrameType | None) -> None:
        if stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.reason = signal.Signals(number).name

    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, ask) for number in SIGNALS if in_main}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
