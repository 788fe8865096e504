"""One thread computes: what waits for it is gathered and computed together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from electra.errors import ElectraError

MAX_WAITING = 256
MAX_TOGETHER = 32
IDLE_S = 2.0


class Busy(Exception):
    """More requests wait than there is room for."""


@dataclass(frozen=True, slots=True)
class _Job:
    kind: Hashable
    item: Any
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def settle(self, result: Any) -> None:
        """Hand the result, or the exception, to whoever waits; nobody may, after a disconnect or at the end."""
        try:
            self.loop.call_soon_threadsafe(self._settle, result)
        except RuntimeError:  # the loop is closed
            return

    def _settle(self, result: Any) -> None:
        if self.answer.done():
            return
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class Batcher:
    """Answers of `compute(kind, items)`, one an item; items of one kind that wait at the same time go together.

    `idle` is called between batches, at least every `IDLE_S`.
    """

    def __init__(
        self, compute: Callable[[Any, Sequence[Any]], Sequence[Any]], *, idle: Callable[[], None] = lambda: None
    ) -> None:
        self._compute, self._idle = compute, idle
        self._waiting: queue.Queue[_Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="electra-compute", daemon=True)

    @contextmanager
    def running(self, *, timeout_s: float = 5.0) -> Iterator[None]:
        """The thread lives inside; at the end it finishes what waits."""
        self._thread.start()
        try:
            yield
        finally:
            self._waiting.put(None)
            self._thread.join(timeout_s)

    async def answer(self, kind: Hashable, item: Any) -> Any:
        """The answer for one item; `Busy` where too many wait already."""
        if self._waiting.qsize() >= MAX_WAITING:
            raise Busy
        loop = asyncio.get_running_loop()
        job = _Job(kind, item, loop, loop.create_future())
        self._waiting.put(job)
        return await job.answer

    def _work(self) -> None:
        more = True
        while more:
            jobs, more = self._gather()
            by_kind: dict[Hashable, list[_Job]] = {}
            for job in jobs:
                if not job.answer.cancelled():
                    by_kind.setdefault(job.kind, []).append(job)
            for kind, alike in by_kind.items():
                self._answer(kind, alike)
            self._idle()

    def _gather(self) -> tuple[list[_Job], bool]:
        """What waits, once something does or `IDLE_S` have passed; False at the end."""
        jobs: list[_Job] = []
        try:
            job = self._waiting.get(timeout=IDLE_S)
            while job is not None and len(jobs) < MAX_TOGETHER - 1:
                jobs.append(job)
                job = self._waiting.get_nowait()
        except queue.Empty:
            return jobs, True
        return (jobs, False) if job is None else ([*jobs, job], True)

    def _answer(self, kind: Hashable, jobs: list[_Job]) -> None:
        try:
            results = self._compute(kind, [job.item for job in jobs])
        except ElectraError as error:
            if len(jobs) > 1:  # whose fault it is shows one by one
                for job in jobs:
                    self._answer(kind, [job])
                return
            results = [error]
        except Exception as error:  # a bug of ours: the thread lives on for the others
            results = [error] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            job.settle(result)
