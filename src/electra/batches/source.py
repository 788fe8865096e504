"""A run's batches: short sequences or small batches at its beginning, altered copies at its end, where asked for.

Short and whole sequences are two streams, each with a layout and an order of its own. Where one ends, the other begins
with the next epoch, so that no sequence of one has the key of a sequence of the other. A larger batch, and one with
copies, goes on where the one before ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from electra.batches.layout import Specials, Split
from electra.batches.loader import Batch, Loader, Stream
from electra.batches.order import Cursor
from electra.config.schema import DataConfig

if TYPE_CHECKING:
    import torch


class StepRows(NamedTuple):
    """What rows a step has."""

    short: bool
    batch_size: int
    """In sequences of the whole length: of short ones it is as many tokens."""
    copies: bool
    """Whether a share of the sequences has an altered copy."""


class Source:
    """Where the batches of a run come from; `share` gives this process's rows of a batch of some size."""

    def __init__(
        self,
        split: Split,
        data: DataConfig,
        specials: Specials,
        *,
        seed: int,
        batch_size: int,
        device: torch.device,
        share: Callable[[int], slice],
    ) -> None:
        import torch

        self.copies = torch.zeros((), device=device)
        """1 while the batches have copies, else 0."""
        self.last = StepRows(False, batch_size, copies=bool(data.copies))
        self._device, self._share = device, share
        self.whole = data
        self.short = replace(data, length=data.length_start or data.length)
        self._streams = {rows: Stream(split, rows, specials, seed=seed) for rows in (self.whole, self.short)}

    def stream(self, data: DataConfig) -> Stream:
        """The sequences of the `whole` length or of the `short` one."""
        return self._streams[data]

    def batches(
        self, step: int, cursor: Cursor, *, rows_at: Callable[[int], StepRows], length: int = 0
    ) -> Generator[Batch, None, None]:
        """The batches after `step` steps, the last of which had sequences of `length` and ended at `cursor`.

        `rows_at` says what rows a step has, by number; it is not asked again after one that has the `last` ones, nor of
        steps that are done: by a clock, which has gone on, they would have those of now.
        """
        rows = rows_at(step)
        while True:
            before, length = length, self._of(rows).length
            if 0 < before < length:
                cursor = Cursor(cursor.epoch + 1)
            self.copies.fill_(float(rows.copies))
            with closing(self._loader(rows, cursor)) as loader:
                for batch in loader:
                    if rows != self.last and rows_at(step) != rows:
                        break
                    yield batch
                    step, cursor = step + 1, batch.after
            rows = rows_at(step)

    def _of(self, rows: StepRows) -> DataConfig:
        return self.short if rows.short else self.whole

    def _loader(self, rows: StepRows, cursor: Cursor) -> Loader:
        data = self._of(rows)
        count = rows.batch_size * self.whole.length // data.length
        return Loader(
            self._streams[data],
            cursor,
            batch_size=count,
            device=self._device,
            share=self._share(count),
            copies=data.copies if rows.copies else 0.0,
        )
