"""A token sequence longer than a model reads, as windows that overlap by half."""

from __future__ import annotations

from electra.errors import CheckpointError
from electra.interop.models import Loaded


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
    best, most_context = [0] * count, [-1] * count
    for start in window_starts(count, capacity):
        size = min(capacity, count)
        for place in range(size):
            context = min(place, size - 1 - place)
            if context > most_context[start + place]:
                best[start + place], most_context[start + place] = start, context
    return best
