"""A token sequence longer than a model reads, as windows that overlap by half.

Shapes: N texts, W windows, T tokens of all texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from electra.batches.layout import number_ranges
from electra.errors import CheckpointError
from electra.finetune.batching import FlatSequences
from electra.interop.models import Loaded
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.many_texts import FlatIds


def text_capacity(loaded: Loaded) -> int:
    """How many tokens of a text the model reads at once: its length without [CLS] and [SEP]."""
    capacity = loaded.length - 2
    if capacity < 1:
        raise CheckpointError(loaded.path, f"a length of {loaded.length} leaves no place for text")
    return capacity


def window_starts(count: int, capacity: int) -> list[int]:
    """The first token of each window of `capacity` tokens: half a window apart, the last one ending with the text."""
    if count <= capacity:
        return [0] if count else []
    return [*range(0, count - capacity, max(1, capacity // 2)), count - capacity]


def best_windows(count: int, capacity: int) -> list[int]:
    """For each token the start of the window that has the most context on both sides of it."""
    starts = window_starts(count, capacity)
    ends = [*best_ends(starts, capacity), count]
    return [start for start, first, end in zip(starts, [0, *ends], ends, strict=False) for _ in range(first, end)]


def best_ends(starts: list[int], capacity: int) -> list[int]:
    """Where each window's tokens end and the next one's begin, if each token goes to the window with most context."""
    return [(one + other + capacity + 1) // 2 for one, other in zip(starts, starts[1:], strict=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Texts as `[CLS] window [SEP]` sequences, the windows of a text one after the other; an empty text has one."""

    sequences: FlatSequences
    firsts_N: NDArray[np.int64]
    """The first window of each text."""
    starts_W: NDArray[np.int64]
    """Of all texts' tokens end to end, the first in each window."""
    best_W: NDArray[np.int64]
    best_ends_W: NDArray[np.int64]
    """Of all texts' tokens end to end, those that have the most context in this window: from the first of the two up to
    but without the second. Each token is in one window's."""


def cut(texts: FlatIds, *, capacity: int, tokenizer: Tokenizer) -> Windows:
    """The windows of all texts."""
    text_ends_N = np.cumsum(texts.sizes)
    text_starts_N = text_ends_N - texts.sizes
    owners_W = np.arange(len(texts.sizes))
    firsts_N, starts_W, best_W, best_ends_W = owners_W, text_starts_N, text_starts_N, text_ends_N
    if (texts.sizes > capacity).any():
        starts = [window_starts(count, capacity) or [0] for count in texts.sizes.tolist()]
        counts_N = np.array([len(its) for its in starts])
        firsts_N, owners_W = np.cumsum(counts_N) - counts_N, np.repeat(owners_W, counts_N)
        starts_W = text_starts_N[owners_W] + np.concatenate(starts)
        borders = [best_ends(its, capacity) for its in starts]
        best_W = text_starts_N[owners_W] + np.concatenate([[0, *its] for its in borders])
        best_ends_W = np.append(best_W[1:], text_ends_N[-1])
    sizes_W = np.minimum(text_ends_N[owners_W] - starts_W, capacity)
    sequences = _sequences(texts.ids, starts_W, sizes_W, tokenizer=tokenizer)
    return Windows(sequences=sequences, firsts_N=firsts_N, starts_W=starts_W, best_W=best_W, best_ends_W=best_ends_W)


def _sequences(
    ids_T: NDArray[np.int32], starts_W: NDArray[np.int64], sizes_W: NDArray[np.int64], *, tokenizer: Tokenizer
) -> FlatSequences:
    """`[CLS] window [SEP]` of each window."""
    whole_W = sizes_W + 2
    places_W = np.cumsum(whole_W) - whole_W + 1  # the first entry of flat sequences is padding
    ids = np.full(1 + int(whole_W.sum()), tokenizer.sep_id, np.int32)
    ids[places_W] = tokenizer.cls_id
    ids[number_ranges(places_W + 1, sizes_W)] = ids_T[number_ranges(starts_W, sizes_W)]
    return FlatSequences(ids=ids, starts=places_W, sizes=whole_W, a_lengths=whole_W.astype(np.int32))
