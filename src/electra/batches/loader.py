"""Batches in order, prepared ahead of the step in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from electra.batches.copies import with_copies
from electra.batches.epoch_plan import plan_epoch
from electra.batches.layout import Layout, Specials, Split
from electra.batches.order import Cursor, permutation, sample_keys
from electra.config.schema import DataConfig
from electra.errors import DataError

if TYPE_CHECKING:
    import torch

EXTRA_COLUMNS = 3  # after the ids: length, length of segment A, sample key


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch's sequences in the order in which they are used."""

    number: int
    layout: Layout
    order: NDArray[np.int64]


class Stream:
    """The endless, addressed stream of sequences; `of` names the data in errors."""

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, of: str = "training") -> None:
        self._split, self._data, self.specials, self._seed, self._of = split, data, specials, seed, of
        self._epochs: dict[int, Future[Epoch]] = {}
        self._lock = threading.Lock()

    def epoch(self, number: int) -> Epoch:
        """The sequences of one epoch; it and the one before stay in memory."""
        epoch, new = self._place(number)
        if new:
            self._plan(number, epoch)
        return epoch.result()

    def look_ahead(self, cursor: Cursor) -> None:
        """Past the middle of an epoch, begin to plan the next one in a thread, so that nobody waits for it."""
        if 2 * cursor.offset > self.epoch(cursor.epoch).layout.count:
            epoch, new = self._place(cursor.epoch + 1, before=2)
            if new:
                threading.Thread(target=self._plan, args=(cursor.epoch + 1, epoch), daemon=True).start()

    def _place(self, number: int, *, before: int = 1) -> tuple[Future[Epoch], bool]:
        """Where an epoch's plan is or will be, and whether it is the caller's to make; drops what is long past."""
        with self._lock:
            self._epochs = {n: epoch for n, epoch in self._epochs.items() if n >= number - before}
            new = number not in self._epochs
            return self._epochs.setdefault(number, Future()), new

    def _plan(self, number: int, epoch: Future[Epoch]) -> None:
        try:
            layout = plan_epoch(self._split, self._data, self.specials, seed=self._seed, epoch=number)
            if layout.count == 0:
                fix = "prepare more text or lower data.length"
                raise DataError(f"{self._of} data", "holds no whole sequence", fix=fix)
            epoch.set_result(Epoch(number, layout, permutation(layout.count, seed=self._seed, epoch=number)))
        except BaseException as error:  # raised where the epoch is asked for
            epoch.set_exception(error)

    def take(self, cursor: Cursor, count: int) -> tuple[NDArray[np.int32], Cursor]:
        """The next `count` sequences as rows (see `pack`), and the place after them."""
        parts: list[NDArray[np.int32]] = []
        while count:
            epoch = self.epoch(cursor.epoch)
            here = epoch.order[cursor.offset : cursor.offset + count]
            parts.append(pack(epoch.layout, here, sample_keys(here, seed=self._seed, epoch=epoch.number)))
            count -= len(here)
            end = cursor.offset + len(here)
            cursor = Cursor(cursor.epoch + 1, 0) if end >= epoch.layout.count else Cursor(cursor.epoch, end)
        return np.concatenate(parts), cursor


def pack(layout: Layout, samples: NDArray[np.int64], keys: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows of ids followed by length, length of segment A and key: one array, one copy to the device."""
    rows = layout.rows(samples)
    return np.concatenate((rows.ids, rows.lengths[:, None], rows.a_lengths[:, None], keys[:, None]), axis=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows on the device, and the place in the stream after them."""

    rows: torch.Tensor
    after: Cursor

    @property
    def length(self) -> int:
        """Tokens in a sequence."""
        return self.rows.shape[1] - EXTRA_COLUMNS


class Loader:
    """An iterator of batches on a device; several at a time travel in one copy, made ahead in a thread.

    `share` is this process's part of a batch; a share `copies` of its rows has an altered copy.
    """

    def __init__(
        self,
        stream: Stream,
        cursor: Cursor,
        *,
        batch_size: int,
        device: torch.device,
        share: slice | None = None,
        copies: float = 0.0,
    ) -> None:
        self._stream, self._cursor, self._batch_size, self._device = stream, cursor, batch_size, device
        self._share, self._copies = share or slice(0, batch_size), copies
        self._group = 32 if device.type == "cuda" else 1
        self._ready: queue.Queue[tuple[torch.Tensor, list[Cursor]] | BaseException] = queue.Queue(maxsize=2)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="electra-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            item = self._ready.get()
            if isinstance(item, BaseException):
                raise item
            rows, places = item
            for number, after in enumerate(places):
                yield Batch(rows[number], after)

    def close(self) -> None:
        """Stop the thread; what it had prepared is dropped."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)

    def _work(self) -> None:
        try:
            while not self._closed.is_set():
                self._put(self._prepare())
        except BaseException as error:  # handed to the consumer, who raises it
            self._put(error)

    def _prepare(self) -> tuple[torch.Tensor, list[Cursor]]:
        import torch

        blocks, places = [], []
        for _ in range(self._group):
            rows, self._cursor = self._stream.take(self._cursor, self._batch_size)
            self._stream.look_ahead(self._cursor)
            rows = rows[self._share]
            blocks.append(
                with_copies(rows, share=self._copies, specials=self._stream.specials) if self._copies else rows
            )
            places.append(self._cursor)
        host = torch.from_numpy(np.stack(blocks))
        if self._device.type == "cuda":
            # On the default stream, which the steps use too: a step cannot start before its rows have arrived.
            return host.pin_memory().to(self._device, non_blocking=True), places
        return host, places

    def _put(self, item: tuple[torch.Tensor, list[Cursor]] | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
