"""Rows whose second segment is an altered copy of their first: something to compare.

Shapes: K rows, H tokens of a segment at most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from electra import rng
from electra.batches.layout import Int32s, Specials, uniform

Floats = NDArray[np.float64]

COPIES = 105  # purpose under a sample's key
SHORTEST = 4
"""Tokens of a text at least; rows with fewer stay as they are."""
_ALTERED = 0.7  # of the copies lose tokens, and as many have tokens of other places, independently
_MOST_LOST, _MOST_REPLACED = 0.5, 0.6
_TURNED, _SHUFFLED = 0.35, 0.15
_NO_COPY = 0.2  # of the rows keep their own second segment: a text that goes on, and shares few words


def with_copies(rows: Int32s, *, share: float, specials: Specials) -> Int32s:
    """Rows of `electra.batches.loader.pack`, a share of them [CLS] text [SEP] altered copy [SEP] in either order.

    The text is a stretch of the first segment. The copy loses tokens, has others from elsewhere in its row, and may
    begin in its middle or be shuffled; a fifth of these rows keep a stretch of their own second segment instead.
    What becomes of a row follows from its key.
    """
    width = rows.shape[1] - 3
    most = (width - 3) // 2
    keys = rng.fold(rows[:, width + 2], COPIES)
    a_tokens = rows[:, width + 1] - 2
    chosen = (_uniform(keys, 0) < share) & (np.minimum(a_tokens, most) >= SHORTEST)
    made = rows.copy()
    if chosen.any():
        made[chosen] = _compared(rows[chosen], keys[chosen], most=most, specials=specials)
    return made


def _compared(rows: Int32s, keys: Int32s, *, most: int, specials: Specials) -> Int32s:
    width = rows.shape[1] - 3
    lengths, a_lengths = rows[:, width], rows[:, width + 1]
    a_tokens, b_tokens = a_lengths - 2, np.maximum(lengths - a_lengths - 1, 0)
    place = np.arange(most, dtype=np.int32)
    one, one_tokens = _stretch(rows, keys, 1, first=np.ones_like(lengths), tokens=a_tokens, most=most)
    copy, copy_tokens = _altered(rows, one, one_tokens, keys, b_tokens=b_tokens)
    follows, follows_tokens = _stretch(rows, keys, 3, first=a_lengths, tokens=b_tokens, most=most)
    goes_on = (_uniform(keys, 5) < _NO_COPY) & (b_tokens >= SHORTEST)
    two = np.where(goes_on[:, None], follows, copy)
    two_tokens = np.where(goes_on, follows_tokens, copy_tokens)
    swapped = _uniform(keys, 6) < 0.5
    first, second = np.where(swapped[:, None], two, one), np.where(swapped[:, None], one, two)
    sizes = np.where(swapped, two_tokens, one_tokens), np.where(swapped, one_tokens, two_tokens)
    made = np.full_like(rows, specials.pad)
    made[:, 0] = specials.cls
    at = np.arange(len(rows))
    for text, size, start in ((first, sizes[0], np.ones_like(lengths)), (second, sizes[1], sizes[0] + 2)):
        row, token = np.nonzero(place < size[:, None])
        made[row, start[row] + token] = text[row, token]
        made[at, start + size] = specials.sep
    made[:, width], made[:, width + 1], made[:, width + 2] = sizes[0] + sizes[1] + 3, sizes[0] + 2, rows[:, width + 2]
    return made


def _stretch(
    rows: Int32s, keys: Int32s, draw: int, *, first: Int32s, tokens: Int32s, most: int
) -> tuple[Int32s, Int32s]:
    """(K, H) a stretch of each row's `tokens` tokens from place `first` on, and how long it is."""
    longest = np.minimum(tokens, most)
    size = np.minimum(SHORTEST + _below(keys, draw, longest - SHORTEST + 1), longest)
    start = first + _below(keys, draw + 1, tokens - size + 1)
    place = np.minimum(start[:, None] + np.arange(most), rows.shape[1] - 4)
    return np.take_along_axis(rows, place, 1), size


def _altered(rows: Int32s, text: Int32s, tokens: Int32s, keys: Int32s, *, b_tokens: Int32s) -> tuple[Int32s, Int32s]:
    """(K, H) the text with tokens left out, replaced and moved, and how many are left: one at least."""
    count, most = text.shape
    place = np.arange(most, dtype=np.int32)
    lost = _MOST_LOST * _uniform(keys, 7) * (_uniform(keys, 8) < _ALTERED)
    replaced = _MOST_REPLACED * _uniform(keys, 9) * (_uniform(keys, 10) < _ALTERED)
    kept = (place < tokens[:, None]) & (_uniform_each(keys, 11, most) >= lost[:, None])
    kept[~kept.any(1), 0] = True
    other = np.where(_uniform_each(keys, 12, most) < replaced[:, None], _elsewhere(rows, keys, b_tokens, most), text)
    turn, order = _below(keys, 13, tokens)[:, None], _uniform(keys, 14)[:, None]
    moved = np.where(order < _TURNED, (place - turn) % tokens[:, None], np.broadcast_to(place, (count, most)))
    moved = np.where((order >= _TURNED) & (order < _TURNED + _SHUFFLED), _uniform_each(keys, 15, most), moved)
    sorted_places = np.argsort(np.where(kept, moved, np.inf), axis=1, kind="stable")
    return np.take_along_axis(other, sorted_places, 1), kept.sum(1).astype(np.int32)


def _elsewhere(rows: Int32s, keys: Int32s, b_tokens: Int32s, most: int) -> Int32s:
    """(K, H) tokens of each row's second segment, or of its first where it has no other."""
    a_lengths = rows[:, -2]
    alone = b_tokens == 0
    first, tokens = np.where(alone, 1, a_lengths), np.where(alone, a_lengths - 2, b_tokens)
    place = first[:, None] + (_uniform_each(keys, 16, most) * tokens[:, None]).astype(np.int32)
    return np.take_along_axis(rows, place, 1)


def _below(keys: Int32s, draw: int, limit: Int32s) -> Int32s:
    """(K,) a whole number from 0 up to but without the limit, 0 where that is below 1."""
    return (_uniform(keys, draw) * np.maximum(limit, 1)).astype(np.int32)


def _uniform(keys: Int32s, draw: int) -> Floats:
    return uniform(rng.bits(keys, rng.mix(np.full(1, draw, np.int32))))


def _uniform_each(keys: Int32s, draw: int, most: int) -> Floats:
    return uniform(rng.bits(rng.fold(keys, draw)[:, None], rng.mix(np.arange(most, dtype=np.int32))))
