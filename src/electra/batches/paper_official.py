"""Sequences as the official code cuts them: whole sentences up to a length, the rest of the last one discarded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from electra import rng
from electra.batches.layout import (
    SHORTEST,
    Int32s,
    Int64s,
    Rows,
    Specials,
    Split,
    document_keys,
    number_ranges,
    uniform,
)
from electra.config.schema import DataConfig

EVERYTHING = 100_000  # segment A's target length when a sequence has no segment B


class PaperOfficialLayout:
    """Whole sentences up to a target length, divided into segments A and B, cut to length, padded."""

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> None:
        self._split, self._specials, self._length = split, specials, data.length
        self._sentence_lengths = np.diff(split.sentence_starts)
        keys = document_keys(split.document_ids, seed, "layout", epoch)
        first, last, target, example_keys = self._cut(keys, data)
        in_b, a_total, b_total = self._divide(first, last, target, example_keys, data)
        self.count = len(first)
        self._first, self._last, self._in_b = first, last, in_b
        self._a = np.minimum(a_total, data.length - 2)
        self._b = np.minimum(b_total, np.maximum(0, data.length - self._a - 3))
        self.kept_share = float((self._a.sum() + self._b.sum()) / max(1, int(split.sentence_starts[-1])))

    def _cut(self, keys: Int32s, data: DataConfig) -> tuple[Int64s, Int64s, Int64s, Int32s]:
        """Runs of sentences: all documents advance together, one sequence each a round."""
        starts, bounds = self._split.sentence_starts, self._split.document_starts
        here, end = bounds[:-1].copy(), bounds[1:]
        alive = np.flatnonzero(starts[here] < starts[end])
        parts: list[tuple[Int64s, Int64s, Int64s, Int32s]] = []
        number = 0
        while len(alive):
            draws: Int32s = rng.fold(keys[alive], np.full(1, number, np.int32))
            shortened = uniform(rng.mix(draws ^ 1)) < data.short
            spread = data.length - SHORTEST + 1
            shorter = SHORTEST + (uniform(rng.mix(draws ^ 2)) * spread).astype(np.int64)
            target = np.where(shortened, shorter, data.length)
            first, stop = here[alive], end[alive]
            last = np.minimum(np.searchsorted(starts, starts[first] + target, side="left"), stop)
            parts.append((first, last, target, draws))
            here[alive] = last
            alive = alive[starts[last] < starts[stop]]
            number += 1
        if not parts:
            empty = np.zeros(0, np.int64)
            return empty, empty, empty, np.zeros(0, np.int32)
        first, last, target, draws = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(first, kind="stable")
        return first[order], last[order], target[order], draws[order]

    def _divide(
        self, first: Int64s, last: Int64s, target: Int64s, keys: Int32s, data: DataConfig
    ) -> tuple[NDArray[np.bool_], Int64s, Int64s]:
        """Segment of every sentence and the segments' total lengths: all sequences advance a sentence a round."""
        single = uniform(rng.mix(keys ^ 3)) < data.single_segment
        a_target = np.where(single, EVERYTHING, (target - 3) // 2)
        a, b = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        in_b = np.zeros(len(self._sentence_lengths), np.bool_)
        alive = np.flatnonzero(first < last)
        turn = 0
        while len(alive):
            sentence = first[alive] + turn
            size = self._sentence_lengths[sentence]
            coin = uniform(rng.fold(keys[alive], np.full(1, turn + 16, np.int32))) < 0.5
            goal, so_far, other = a_target[alive], a[alive], b[alive]
            to_a = (so_far == 0) | (so_far + size < goal) | ((other == 0) & (so_far < goal) & coin)
            a[alive] += np.where(to_a, size, 0)
            b[alive] += np.where(to_a, 0, size)
            in_b[sentence] = ~to_a
            turn += 1
            alive = alive[first[alive] + turn < last[alive]]
        return in_b, a, b

    @property
    def lengths(self) -> Int64s:
        return 2 + self._a + np.where(self._b > 0, self._b + 1, 0)

    @property
    def runs(self) -> Int64s:
        """The sentences that a row was made of, whole: also what was cut off."""
        return self._split.sentence_starts[np.stack((self._first, self._last), axis=1)]

    def rows(self, samples: Int64s) -> Rows:
        first, counts = self._first[samples], self._last[samples] - self._first[samples]
        a, b = self._a[samples], self._b[samples]
        row = np.repeat(np.arange(len(samples)), counts)
        sentence = number_ranges(first, counts)
        size, second = self._sentence_lengths[sentence], self._in_b[sentence]
        a_size, b_size = np.where(second, 0, size), np.where(second, size, 0)
        start = np.where(second, _offsets(b_size, counts) + 2 + a[row], _offsets(a_size, counts) + 1)
        limit = np.where(second, 2 + a[row] + b[row], 1 + a[row])
        take = np.clip(limit - start, 0, size)
        source = number_ranges(self._split.sentence_starts[sentence], take)
        target = number_ranges(row * self._length + start, take)
        ids = np.full((len(samples), self._length), self._specials.pad, np.int32)
        ids.reshape(-1)[target] = self._split.gather(source)
        line = np.arange(len(samples))
        ids[:, 0] = self._specials.cls
        ids[line, 1 + a] = self._specials.sep
        two = b > 0
        ids[line[two], (2 + a + b)[two]] = self._specials.sep
        lengths = 2 + a + np.where(two, b + 1, 0)
        return Rows(ids=ids, lengths=lengths.astype(np.int32), a_lengths=(2 + a).astype(np.int32))


def _offsets(sizes: Int64s, counts: Int64s) -> Int64s:
    """Running total of `sizes` before each element, starting anew in each group of `counts` elements."""
    before = np.cumsum(sizes) - sizes
    group_start = np.cumsum(counts) - counts
    filled = counts > 0
    base = np.zeros(len(counts), np.int64)
    base[filled] = before[group_start[filled]]
    return before - np.repeat(base, counts)
