"""One bar over a whole experiment, fed by what its configurations leave on disk, in whichever process they run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from electra.errors import DataError, ElectraError
from electra.fsio import open_file
from electra.jsontext import parse_json
from electra.progress import progress
from electra.train.metrics_file import FILE

EVERY_S = 1.0
_TAIL_BYTES = 65_536  # longer than any line of metrics.jsonl


@contextlib.contextmanager
def watched(title: str, total: int, done: Callable[[], float]) -> Iterator[None]:
    """Show how many of `total` runs are done, with the time left, while the block runs; `done` gives fractions too."""
    over = threading.Event()
    with progress(title, total, "runs", start=done()) as bar:

        def follow() -> None:
            while not over.wait(EVERY_S):
                with contextlib.suppress(OSError, ElectraError):  # a file that is being exchanged
                    bar.update(done())

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            over.set()
            follower.join()
            bar.update(done())


def step_reached(run: Path) -> int:
    """The last step in a run's metrics.jsonl; 0 where there is none."""
    try:
        with open_file(run / FILE) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        with contextlib.suppress(DataError, KeyError, TypeError, ValueError):
            return int(parse_json(line, where=run / FILE)["step"])
    return 0
