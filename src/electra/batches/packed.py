"""Documents end to end, without padding."""

from __future__ import annotations

import numpy as np

from electra import rng
from electra.batches.layout import Int32s, Int64s, Rows, Specials, Split, document_keys
from electra.config.schema import DataConfig


class PackedLayout:
    """Documents in random order, end to end with [SEP] between them, cut into full sequences from a random place on.

    The stream of documents is a circle: what the last row lacks it takes from the beginning, so nothing is left over.
    A token attends to its own document only: see `separator_of`.
    """

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> None:
        self._split, self._specials, self._length = split, specials, data.length
        keys = document_keys(split.document_ids, seed, "pack", epoch)
        order = np.lexsort((np.arange(len(keys)), keys))
        self._starts = split.sentence_starts[split.document_starts[:-1]][order]
        self._sizes = split.sentence_starts[split.document_starts[1:]][order] - self._starts
        self._stream = np.concatenate(([0], np.cumsum(self._sizes + 1)))
        size, body = int(self._stream[-1]), data.length - 2
        self.count = -(-size // body) if size >= body else 0
        self.kept_share = float(self.count > 0)
        high, low = (rng.derive(seed, "rotate", epoch, part) % 2**32 for part in range(2))
        self._turned = (high << 32 | low) % max(1, size)

    @property
    def lengths(self) -> Int64s:
        return np.full(self.count, self._length, np.int64)

    @property
    def runs(self) -> Int64s:
        first = np.arange(self.count) * (self._length - 2)
        places = np.stack((first, first + self._length - 3), axis=1)
        runs: Int64s = self._sources(places)[0] + np.array([0, 1])
        return runs

    def rows(self, samples: Int64s) -> Rows:
        body = self._length - 2
        source, between = self._sources(samples[:, None] * body + np.arange(body)[None, :])
        ids = np.empty((len(samples), self._length), np.int32)
        ids[:, 0], ids[:, -1] = self._specials.cls, self._specials.sep
        # A separator has no source token; position 0 stands in and is overwritten.
        text = self._split.gather(np.where(between, 0, source))
        ids[:, 1:-1] = np.where(between, self._specials.sep, text)
        full: Int32s = np.full(len(samples), self._length, np.int32)
        return Rows(ids=ids, lengths=full, a_lengths=full)

    def _sources(self, places: Int64s) -> tuple[Int64s, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
        """Where in the split the tokens at these places of the stream are, and which of them are separators."""
        places = (places + self._turned) % max(1, int(self._stream[-1]))
        document = np.searchsorted(self._stream, places, side="right") - 1
        offset = places - self._stream[document]
        return self._starts[document] + offset, offset == self._sizes[document]
