"""Where a run stands, by its folder: how far it is to go, and whether a process trains in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from electra.checkpoint.folder import CONFIG, FACTS, read_config
from electra.config.schema import Config
from electra.errors import CheckpointError
from electra.train.clock import FILE as CLOCK
from electra.train.clock import elapsed_seconds
from electra.train.metrics_file import FILE as METRICS

STILL_S = 10.0
"""A run notes its time every second: one that has not for so long is no longer trained."""


def config_of(run: Path) -> Config:
    """The configuration of a run that has begun; CheckpointError where the folder holds none."""
    if not all((run / name).is_file() for name in (CONFIG, FACTS, METRICS)):
        raise CheckpointError(run, "holds no pre-training run", fix="give the --out of `electra pretrain`")
    return read_config(run)


class Liveness:
    """Whether a process trains in a run folder, seen by the time that it notes there."""

    def __init__(self, run: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = run / CLOCK, now
        self._noted = self._stamp()
        age = time.time() - self._noted / 1e9
        self._since = now() - (age if age >= 0 else STILL_S)

    def alive(self) -> bool:
        """Whether the time was noted in the last seconds."""
        noted = self._stamp()
        if noted != self._noted:
            self._noted, self._since = noted, self._now()
        return self._now() - self._since < STILL_S

    def _stamp(self) -> int:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0


def began_at(run: Path) -> float:
    """When a run would have begun, by the clock of this machine, had it trained without a pause."""
    try:
        return os.stat(run / CLOCK).st_mtime - elapsed_seconds(run)
    except OSError:
        return time.time()
