"""Which processes of a run are alive: each counts up in the store that they share, twice a second."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

BEAT_S = 0.5
LOOK_S = 2.5
"""A process whose count stands still for this long is lost: killed, stopped, or cut off."""


class Heartbeat:
    """Counts for this process in a `torch.distributed` store, and reads the counts of the others."""

    def __init__(self, store: Any, *, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="electra-heartbeat", daemon=True)
        self._thread.start()

    def lost(self) -> list[int]:
        """The ranks that no longer count; takes a few seconds. Rank 0 where the store itself is gone."""
        try:
            before = self._counts()
            time.sleep(LOOK_S)
            after = self._counts()
        except RuntimeError:  # kept by the process that leads, or by its launcher
            return [0] if self._rank else []
        return [rank for rank in range(self._size) if rank != self._rank and before[rank] == after[rank]]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        count = 0
        with contextlib.suppress(RuntimeError):  # the store is gone: nobody is left to tell
            while not self._over.wait(BEAT_S):
                count += 1
                self._store.set(_key(self._rank), str(count))

    def _counts(self) -> list[bytes]:
        keys = [_key(rank) for rank in range(self._size)]
        return [self._store.get(key) if self._store.check([key]) else b"" for key in keys]


def _key(rank: int) -> str:
    return f"heartbeat-{rank}"
