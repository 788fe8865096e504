"""Work on a second stream beside the one in use: what nothing waits for fills the gaps of what everything waits for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


class Aside:
    """Runs pieces of work beside the stream in use, in turns: turn `n` waits for its inputs only.

    Without a GPU, and where `enabled` is false, the work is done on the spot.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self._side = _stream(device.index) if enabled and device.type == "cuda" else None
        self._done: dict[int, torch.cuda.Event] = {}

    def run(self, turn: int, work: Callable[[], None]) -> None:
        """Begin `work` when what was asked for so far is done."""
        if self._side is None:
            work()
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            work()
            self._done[turn] = self._side.record_event()

    def await_turn(self, turn: int) -> None:
        """Go on only when that turn's work is done, if there was any."""
        if turn in self._done:
            torch.cuda.current_stream().wait_event(self._done.pop(turn))

    def join(self) -> None:
        """Go on only when all is done."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)


@cache
def _stream(index: int | None) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)
