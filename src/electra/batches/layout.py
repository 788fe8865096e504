"""Which tokens stand in which sequence: the paper's two segments, or documents packed end to end.

A layout is computed for one (seed, epoch) from document and sentence lengths alone, every draw addressed by
(seed, epoch, document, example), and can then write any set of its sequences as rows of token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from electra import rng
from electra.config.schema import DataConfig

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

EVERYTHING = 100_000  # segment A's target length when a sequence has no segment B
SHORTEST = 5  # the shortest length that a shortened sequence aims at


class Split(Protocol):
    """What a layout needs of prepared data (see `electra.shards.dataset`)."""

    @property
    def sentence_starts(self) -> Int64s: ...

    @property
    def document_starts(self) -> Int64s: ...

    @property
    def document_ids(self) -> NDArray[np.uint64]: ...

    def gather(self, positions: Int64s) -> Int32s: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Specials:
    """The ids that a layout writes around text."""

    pad: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Sequences as token ids, how many are real, and how many of those belong to segment A."""

    ids: Int32s
    lengths: Int32s
    a_lengths: Int32s


class Layout(Protocol):
    """The sequences of one epoch."""

    count: int
    kept_share: float

    def rows(self, samples: Int64s) -> Rows: ...


def plan_epoch(split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> Layout:
    """The configured layout of `split` for one epoch."""
    make = PaperLayout if data.layout == "paper" else PackedLayout
    return make(split, data, specials, seed=seed, epoch=epoch)


def separator_of(data: DataConfig, specials: Specials) -> int | None:
    """The id that separates a row's documents, which do not attend to one another; None where a row is one sequence."""
    return specials.sep if data.layout == "packed" else None


def _uniform(bits: Int32s) -> NDArray[np.float64]:
    return bits.view(np.uint32).astype(np.float64) / 2.0**32


def _document_keys(ids: NDArray[np.uint64], *address: int | str) -> Int32s:
    low = (ids & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    high = (ids >> np.uint64(32)).astype(np.uint32).view(np.int32)
    base = np.full(len(ids), rng.derive(*address), dtype=np.int32)
    keys: Int32s = rng.fold(rng.fold(base, low), high)
    return keys


class PaperLayout:
    """Whole sentences up to a target length, divided into segments A and B, cut to length, padded."""

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> None:
        self._split, self._specials, self._length = split, specials, data.length
        self._sentence_lengths = np.diff(split.sentence_starts)
        keys = _document_keys(split.document_ids, seed, "layout", epoch)
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
            shortened = _uniform(rng.mix(draws ^ 1)) < data.short
            spread = data.length - SHORTEST + 1
            shorter = SHORTEST + (_uniform(rng.mix(draws ^ 2)) * spread).astype(np.int64)
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
        single = _uniform(rng.mix(keys ^ 3)) < data.single_segment
        a_target = np.where(single, EVERYTHING, (target - 3) // 2)
        a, b = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        in_b = np.zeros(len(self._sentence_lengths), np.bool_)
        alive = np.flatnonzero(first < last)
        turn = 0
        while len(alive):
            sentence = first[alive] + turn
            size = self._sentence_lengths[sentence]
            coin = _uniform(rng.fold(keys[alive], np.full(1, turn + 16, np.int32))) < 0.5
            goal, so_far, other = a_target[alive], a[alive], b[alive]
            to_a = (so_far == 0) | (so_far + size < goal) | ((other == 0) & (so_far < goal) & coin)
            a[alive] += np.where(to_a, size, 0)
            b[alive] += np.where(to_a, 0, size)
            in_b[sentence] = ~to_a
            turn += 1
            alive = alive[first[alive] + turn < last[alive]]
        return in_b, a, b

    def rows(self, samples: Int64s) -> Rows:
        """Token ids of the given sequences of this epoch."""
        first, counts = self._first[samples], self._last[samples] - self._first[samples]
        a, b = self._a[samples], self._b[samples]
        row = np.repeat(np.arange(len(samples)), counts)
        sentence = _ranges(first, counts)
        size, second = self._sentence_lengths[sentence], self._in_b[sentence]
        a_size, b_size = np.where(second, 0, size), np.where(second, size, 0)
        start = np.where(second, _offsets(b_size, counts) + 2 + a[row], _offsets(a_size, counts) + 1)
        limit = np.where(second, 2 + a[row] + b[row], 1 + a[row])
        take = np.clip(limit - start, 0, size)
        source = _ranges(self._split.sentence_starts[sentence], take)
        target = _ranges(row * self._length + start, take)
        ids = np.full((len(samples), self._length), self._specials.pad, np.int32)
        ids.reshape(-1)[target] = self._split.gather(source)
        line = np.arange(len(samples))
        ids[:, 0] = self._specials.cls
        ids[line, 1 + a] = self._specials.sep
        two = b > 0
        ids[line[two], (2 + a + b)[two]] = self._specials.sep
        lengths = 2 + a + np.where(two, b + 1, 0)
        return Rows(ids=ids, lengths=lengths.astype(np.int32), a_lengths=(2 + a).astype(np.int32))


class PackedLayout:
    """Documents in random order, end to end with [SEP] between them, cut into full sequences.

    A token sees its own document only: see `separator_of`.
    """

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> None:
        self._split, self._specials, self._length = split, specials, data.length
        keys = _document_keys(split.document_ids, seed, "pack", epoch)
        order = np.lexsort((np.arange(len(keys)), keys))
        self._starts = split.sentence_starts[split.document_starts[:-1]][order]
        self._sizes = split.sentence_starts[split.document_starts[1:]][order] - self._starts
        self._stream = np.concatenate(([0], np.cumsum(self._sizes + 1)))
        self.count = int(self._stream[-1]) // (data.length - 2)
        used = self.count * (data.length - 2)
        self.kept_share = used / max(1, int(self._stream[-1]))

    def rows(self, samples: Int64s) -> Rows:
        """Token ids of the given sequences of this epoch."""
        body = self._length - 2
        place = samples[:, None] * body + np.arange(body)[None, :]
        document = np.searchsorted(self._stream, place, side="right") - 1
        offset = place - self._stream[document]
        between = offset == self._sizes[document]
        source = self._starts[document] + np.where(between, 0, offset)
        # A separator has no source token; position 0 stands in and is overwritten.
        text = self._split.gather(np.where(between, 0, source))
        ids = np.empty((len(samples), self._length), np.int32)
        ids[:, 0], ids[:, -1] = self._specials.cls, self._specials.sep
        ids[:, 1:-1] = np.where(between, self._specials.sep, text)
        full = np.full(len(samples), self._length, np.int32)
        return Rows(ids=ids, lengths=full, a_lengths=full)


def _ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """start, start+1, ... for each start, `count` numbers each, end to end."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def _offsets(sizes: Int64s, counts: Int64s) -> Int64s:
    """Running total of `sizes` before each element, starting anew in each group of `counts` elements."""
    before = np.cumsum(sizes) - sizes
    group_start = np.cumsum(counts) - counts
    filled = counts > 0
    base = np.zeros(len(counts), np.int64)
    base[filled] = before[group_start[filled]]
    return before - np.repeat(base, counts)
