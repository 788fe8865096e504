"""A signal ends any command with one line and exit code 75, wherever the command does not take signals itself."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from electra.errors import Resumable
from electra.train.interrupt import EARLIER, SIGNALS


class Stopped(KeyboardInterrupt):
    """A signal asked for an end; its name is the message."""


def last_line(name: str = "") -> str:
    """What is said when a signal of this name, or a Ctrl-C, ended a command."""
    return f"electra: stopped{f' by {name}' if name else ''}; the same command continues where it can"


def behind(error: BaseException) -> BaseException:
    """The signal that came before an error, or the error: packages turn the exception of a signal into their own."""
    if not EARLIER or isinstance(error, Resumable):
        return error
    stopped = Stopped(EARLIER.reason)
    stopped.__cause__ = error
    return stopped


def listen() -> None:
    """Take signals from now on, while the command line itself is imported: the first one ends the program."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: _leave(signal.Signals(number).name))


def _leave(name: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"{last_line(name)}\n".encode())
    os._exit(Resumable.exit_code)


@contextlib.contextmanager
def stopped_by_signals(*, program: bool) -> Iterator[None]:
    """Raise `Stopped` on the first signal; a second one ends the process as if nobody listened.

    A `program` ends at once while it imports: packages swallow an exception there, and go on half imported. When this
    block is over it has its exit code: signals during its last moments are ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        EARLIER.reason = name = signal.Signals(number).name
        if program and _importing(frame):
            _leave(name)
        raise Stopped(name)

    EARLIER.reason = ""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop) for number in SIGNALS if in_main}
    try:
        yield
    finally:
        EARLIER.reason = ""
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if program else handler)


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is part of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False
