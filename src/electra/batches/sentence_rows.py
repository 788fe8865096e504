"""Rows of sentences from which nothing is discarded, cut anew in every epoch.

The rows of a document follow one another, each filled to its length. Where that cuts a sentence, the next row begins
once more with the start of that sentence, or goes on a few tokens before the cut. A document's last row begins as far
before it as there is space: what would be padding holds context instead. So every token stands in at least one row.

A random share of the cuts, and the length of a document's first row, move all others: two epochs have few rows in
common. Positions count the tokens of the split; arrays have one number a row, unless said otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra import rng
from electra.batches.layout import SHORTEST, Int32s, Int64s, Rows, Specials, Split, document_keys, uniform
from electra.config.schema import DataConfig

Bools = NDArray[np.bool_]

SHARED = 0.07
"""Share of its rows that an epoch may have in common with another: rows that begin with a sentence can meet again."""
LONG = 8
"""Rows from which on a document may take one more for the sake of beginning rows with sentences."""
PART_ROWS = 64
"""Rows after which a document counts as another one to the planner, which plans a row of each at a time."""

# What a row's random bits decide; each is drawn from bits of its own.
_OPENING, _SHORT, _TARGET, _SINGLE, _FURTHER, _BACK, _DIVIDE, _MIDDLE = range(1, 9)


class _Parts(NamedTuple):
    """What is planned a row at a time: documents, long ones in several parts."""

    first: Int64s
    sentence: Int64s
    """The sentence that the first token is in."""
    stop: Int64s
    """Rows begin before this position."""
    end: Int64s
    """The document's end."""
    opens: Bools
    """Whether the part begins its document."""
    keys: Int32s


class _Cuts(NamedTuple):
    """Where each row begins and ends, whether all of it is segment A, and its random bits."""

    first: Int64s
    end: Int64s
    single: Bools
    bits: Int32s

    def take(self, rows: Int64s) -> _Cuts:
        """Some of the rows."""
        return _Cuts(self.first[rows], self.end[rows], self.single[rows], self.bits[rows])


class SentenceLayout:
    """Every token of every document, in rows of two segments; a share of the rows has one."""

    def __init__(self, split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> None:
        self._split, self._specials, self._length = split, specials, data.length
        starts = split.sentence_starts
        keys = document_keys(split.document_ids, seed, "rows", epoch)
        cuts = _cut(starts, _parts(starts, split.document_starts, keys, data.length), data)
        self.count = len(cuts.first)
        self._first, self._size = cuts.first, cuts.end - cuts.first
        self._a = _divide(starts, cuts)
        self.kept_share = _covered(cuts) / max(1, int(starts[-1]))

    @property
    def lengths(self) -> Int64s:
        return 2 + self._size + (self._a < self._size)

    @property
    def runs(self) -> Int64s:
        return np.stack((self._first, self._first + self._size), axis=1)

    def rows(self, samples: Int64s) -> Rows:
        first, size, a = self._first[samples], self._size[samples], self._a[samples]
        lengths = 2 + size + (a < size)
        place = np.arange(self._length)
        source = (first - 1)[:, None] + place
        source -= place > (a + 1)[:, None]
        # What stands for [CLS] and padding may lie outside of the split; it is overwritten.
        np.clip(source, 0, self._split.sentence_starts[-1] - 1, out=source)
        ids = self._split.gather(source)
        line = np.arange(len(samples))
        ids[place >= lengths[:, None]] = self._specials.pad
        ids[:, 0] = self._specials.cls
        ids[line, a + 1] = self._specials.sep
        ids[line, lengths - 1] = self._specials.sep
        return Rows(ids=ids, lengths=lengths.astype(np.int32), a_lengths=(a + 2).astype(np.int32))


def _parts(starts: Int64s, documents: Int64s, keys: Int32s, length: int) -> _Parts:
    """Documents that have tokens, those of many rows in several parts, which begin elsewhere in every epoch."""
    bounds = starts[documents]
    filled = np.flatnonzero(np.diff(bounds))
    first, end, keys = bounds[filled], bounds[filled + 1], keys[filled]
    tokens = PART_ROWS * length
    count = np.maximum(1, (end - first) // tokens)  # the last part is the longest, so that no row before it is short
    document = np.repeat(np.arange(len(filled)), count)
    number = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    offset = (uniform(rng.fold(keys, np.zeros(1, np.int32))) * tokens).astype(np.int64)
    begin = first[document] + np.where(number > 0, (number - 1) * tokens + offset[document], 0)
    stop = np.where(number == count[document] - 1, end[document], np.roll(begin, -1))
    sentence, later = documents[filled[document]], np.flatnonzero(number)
    sentence[later] = np.searchsorted(starts, begin[later], side="right") - 1
    part_keys: Int32s = rng.fold(keys[document], ~number.astype(np.int32))
    return _Parts(begin, sentence, stop, end[document], number == 0, part_keys)


def _cut(starts: Int64s, parts: _Parts, data: DataConfig) -> _Cuts:
    """The rows of all parts, sorted by where they begin: the parts advance together, a row each a round."""
    room = data.length - 3
    spare = -(parts.end - parts.first) % room
    spread = np.where(parts.end - parts.first > LONG * room, room, spare) / room
    rows = [_Cuts(*(np.zeros(0, np.int64),) * 2, np.zeros(0, np.bool_), np.zeros(0, np.int32))]
    part = np.arange(len(parts.first))
    first, sentence = parts.first, parts.sentence
    bits: Int32s = rng.fold(parts.keys, np.zeros(1, np.int32))
    number = 0
    while len(part):
        last = parts.end[part]
        single = _drawn(bits, _SINGLE) < data.single_segment
        single |= last - first == room + 1  # fits into one row, if that has no segment B
        end = first + room + single
        if number == 0:  # where a document's rows are cut follows from the length of its first
            shift = np.clip(spare, room // 8, room // 2) * (parts.opens & (last > end))
            end -= _draw(bits, _OPENING, shift + 1)
        end = np.minimum(end, last)
        wanted = (_drawn(bits, _SHORT) < data.short) & (starts[sentence] == first)
        short = _shorten(starts, first, end, last, wanted, bits, data)
        rows.append(_Cuts(first, end, single, bits))
        more, number = np.flatnonzero(end < last), number + 1
        part = part[more]
        bits = rng.fold(parts.keys[part], np.full(1, number, np.int32))
        row = rows[-1].take(more)
        left = last[more] - row.end
        first, sentence = _next(starts, row, left, sentence[more], spread[part], data, short=short[more], coming=bits)
        more = np.flatnonzero(first < parts.stop[part])
        part, first, sentence, bits = part[more], first[more], sentence[more], bits[more]
    cuts = _Cuts(*(np.concatenate(column) for column in zip(*rows, strict=True)))
    return cuts.take(np.argsort(cuts.first, kind="stable"))


def _shorten(
    starts: Int64s, first: Int64s, end: Int64s, last: Int64s, wanted: Bools, bits: Int32s, data: DataConfig
) -> Bools:
    """Which rows are short ones, their `end` moved: the fewest whole sentences that reach a random length."""
    at = np.flatnonzero(wanted)
    longest = max(SHORTEST, min(data.short_length or data.length, data.length))
    target = SHORTEST + _draw(bits[at], _TARGET, np.full(1, longest - SHORTEST + 1))
    there = starts[np.minimum(np.searchsorted(starts, first[at] + target, side="left"), len(starts) - 1)]
    # Not where the sentences do not fit, nor where what they leave of the document is hardly a row.
    fits = (there - first[at] <= data.length - 3) & (there + SHORTEST <= last[at])
    end[at[fits]] = there[fits]
    short = np.zeros(len(first), np.bool_)
    short[at[fits]] = True
    return short


def _next(
    starts: Int64s,
    row: _Cuts,
    left: Int64s,
    sentence: Int64s,
    spread: NDArray[np.float64],
    data: DataConfig,
    *,
    short: Bools,
    coming: Int32s,
) -> tuple[Int64s, Int64s]:
    """Where the row after each row begins, and the sentence there; `left` tokens of the document follow the row."""
    room, little = data.length - 3, data.length // 16
    spare = -left % room  # how far rows can go back without being more
    long = left > LONG * room
    free = np.where(left <= room, spare, np.where(long, little, np.minimum(spare, little)))
    begin = row.end - np.where(short, 0, _draw(row.bits, _FURTHER, free + 1))
    at = np.searchsorted(starts, begin, side="right") - 1
    sentence_start = starts[at]
    # Two epochs meet at one of so many sentences, and part again unless both go on with a sentence.
    choices = np.maximum(1, at - sentence) * spread
    probability = np.sqrt(SHARED * choices / (SHARED * choices + 1 - SHARED))
    wanted = (_drawn(row.bits, _BACK) < probability) & ((row.end - sentence_start <= spare) | long)
    wanted &= begin - sentence_start <= data.length // 3
    wanted |= (_drawn(coming, _SHORT) < data.short) & (begin - sentence_start <= data.length // 2)
    wanted &= sentence_start > row.first
    return np.where(wanted, sentence_start, begin), at


def _divide(starts: Int64s, cuts: _Cuts) -> Int64s:
    """Tokens of segment A: up to a sentence start near the middle, by a coin the one before or the one after it."""
    size = cuts.end - cuts.first
    middle = cuts.first + size // 2
    at = np.searchsorted(starts, middle, side="left")
    after, before = starts[np.minimum(at, len(starts) - 1)], starts[np.maximum(at - 1, 0)]
    late, early = after < cuts.end, before > cuts.first
    cut = np.where(late & (~early | (_drawn(cuts.bits, _DIVIDE) < 0.5)), after, before)
    # Inside of one long sentence there is no such place, and any will do; a whole sentence stays whole.
    inside = ~late & ~early & ((after > cuts.end) | (before < cuts.first))
    anywhere = cuts.first + size // 4 + _draw(cuts.bits, _MIDDLE, size // 2 + 1)
    cut = np.where(inside, anywhere, np.where(late | early, cut, cuts.end))
    return np.where(cuts.single | (cut <= cuts.first), size, cut - cuts.first)


def _covered(cuts: _Cuts) -> int:
    """How many positions stand in some row."""
    reached = np.maximum.accumulate(np.concatenate(([0], cuts.end[:-1]))) if len(cuts.end) else cuts.end
    return int(np.maximum(0, cuts.end - np.maximum(cuts.first, reached)).sum())


def _drawn(bits: Int32s, purpose: int) -> NDArray[np.float64]:
    return uniform(rng.mix(bits ^ purpose))


def _draw(bits: Int32s, purpose: int, below: Int64s) -> Int64s:
    """A whole number from 0 up to, not including, `below`."""
    return (_drawn(bits, purpose) * below).astype(np.int64)
