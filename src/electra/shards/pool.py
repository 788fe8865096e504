"""Blocks through worker processes, a bounded number at a time, results in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import parent_process
from pathlib import Path

from electra.corpus.blocks import Block
from electra.errors import ConfigError, DataError, ElectraError
from electra.shards.options import PrepareOptions
from electra.shards.units import Header, UnitMaker
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.word_cache import CACHED_WORDS

_ALL_CACHED_WORDS = 2 * CACHED_WORDS  # about 160 bytes each, over all processes


@dataclass(frozen=True, slots=True)
class Job:
    """A block to tokenize, and where its unit goes."""

    block: Block
    path: Path
    key: str


class Worker:
    """What one process keeps between jobs."""

    def __init__(self, tokenizer: Tokenizer, options: PrepareOptions, *, workers: int) -> None:
        limit = min(CACHED_WORDS, _ALL_CACHED_WORDS // workers)
        self._maker = UnitMaker(tokenizer, options, cached_words=limit)

    def __call__(self, job: Job) -> Header:
        return self._maker.make(job.block, job.path, key=job.key)


def run(
    jobs: Iterable[Job], *, tokenizer: Tokenizer, folder: Path, options: PrepareOptions, workers: int
) -> Generator[Header, None, None]:
    """Headers of the finished units, in the order of the jobs; `folder` holds the saved tokenizer."""
    if workers == 1:
        yield from map(Worker(tokenizer, options, workers=1), jobs)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(folder, options, workers),
    )
    waiting: deque[Future[Header | str]] = deque()
    try:
        for job in jobs:
            with _interrupts_held():
                waiting.append(pool.submit(_work, job))
            if len(waiting) >= 2 * workers:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    except BrokenProcessPool as error:  # from a result or from the next submit, whichever comes first
        raise ElectraError("a worker process died (out of memory?); run the same command again") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[Header | str]) -> Header:
    result = future.result()
    if isinstance(result, str):
        where, _, reason = result.partition(": ")
        raise DataError(where, reason)
    return result


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started here inherit a blocked Ctrl-C: the terminal sends it to all, the parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: Worker | None = None


def _start(folder: Path, options: PrepareOptions, workers: int) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _worker = Worker(Tokenizer.load(folder), options, workers=workers)


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(job: Job) -> Header | str:
    assert _worker is not None
    try:
        return _worker(job)
    except (DataError, ConfigError) as error:  # they do not survive the way between processes as they are
        return str(error)
