"""The seconds that a run has taken, from its command's start, over all resumes, however each of them ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from electra.errors import DataError
from electra.fsio import read_object, write_json

FILE = "time.json"
EVERY_S = 1.0  # how often the seconds are noted: a killed run forgets no more


def elapsed_seconds(run: Path) -> float:
    """The seconds noted in a run folder; 0 where there are none."""
    try:
        noted = read_object(run / FILE).get("elapsed_s")
    except DataError:  # it counts for the budget only: a damaged one must not stop the run
        return 0.0
    return max(0.0, float(noted)) if isinstance(noted, int | float) else 0.0


@contextlib.contextmanager
def run_clock(run: Path, *, began: float, saved_s: float) -> Iterator[Callable[[], float]]:
    """A function that gives the run's seconds so far, which are noted in its folder all along.

    `began` is when this command started, by `time.monotonic`; `saved_s` are the seconds in the checkpoint that it goes
    on from. Seconds after that checkpoint count too, although what was trained in them is lost.
    """
    before = max(saved_s, elapsed_seconds(run))
    over = threading.Event()

    def elapsed() -> float:
        return before + time.monotonic() - began

    def note() -> None:
        write_json(run / FILE, {"elapsed_s": round(elapsed(), 3)})

    def follow() -> None:
        while not over.wait(EVERY_S):
            with contextlib.suppress(OSError):  # what ends the run is the failure of its own files
                note()

    note()
    follower = threading.Thread(target=follow, name="electra-clock", daemon=True)
    follower.start()
    try:
        yield elapsed
    finally:
        over.set()
        follower.join()
        with contextlib.suppress(OSError):
            note()
