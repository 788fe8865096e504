"""A run's batches, with short sequences at its beginning where asked for: more of them, the same tokens a step.

Short and whole sequences are two streams, each with a layout and an order of its own. Where one ends, the other begins
with the next epoch, so that no sequence of one has the key of a sequence of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from electra.batches.layout import Specials, Split
from electra.batches.loader import Batch, Loader, Stream
from electra.batches.order import Cursor
from electra.config.schema import DataConfig

if TYPE_CHECKING:
    import torch


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
        self._batch_size, self._device, self._share = batch_size, device, share
        self.whole = data
        self.short = replace(data, length=data.length_start or data.length)
        self._streams = {rows: Stream(split, rows, specials, seed=seed) for rows in (self.whole, self.short)}

    def stream(self, data: DataConfig) -> Stream:
        """The sequences of the `whole` length or of the `short` one."""
        return self._streams[data]

    def batches(self, step: int, cursor: Cursor, *, is_short: Callable[[int], bool]) -> Generator[Batch, None, None]:
        """The batches after `step` steps, the last of which ended at `cursor`.

        `is_short` says whether a step, by number, takes short sequences; none does after one that does not.
        """
        ended = step > 0 and is_short(step - 1)
        if is_short(step):
            with closing(self._loader(self.short, cursor)) as loader:
                for batch in loader:
                    if not is_short(step):
                        break
                    yield batch
                    step, cursor = step + 1, batch.after
            ended = True
        with closing(self._loader(self.whole, Cursor(cursor.epoch + 1) if ended else cursor)) as loader:
            yield from loader

    def _loader(self, data: DataConfig, cursor: Cursor) -> Loader:
        rows = self._batch_size * self.whole.length // data.length
        stream = self._streams[data]
        return Loader(stream, cursor, batch_size=rows, device=self._device, share=self._share(rows))
