"""Which tokens of a text look replaced."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from electra.errors import CheckpointError
from electra.interop.models import Loaded

WINDOWS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenVerdict:
    """One token of a text, where it stands, and how likely it was replaced."""

    token: str
    """The vocabulary entry, such as `##ing`."""
    start: int
    end: int
    """Its characters are `text[start:end]`."""
    probability: float
    flagged: bool


def detect(loaded: Loaded, text: str, *, threshold: float = 0.5) -> list[TokenVerdict]:
    """A verdict for each token; a text longer than the model reads is seen in windows that overlap by half."""
    ids, offsets = loaded.tokenizer.encode_with_offsets(text)
    return [
        TokenVerdict(
            token=loaded.tokenizer.token(number),
            start=start,
            end=end,
            probability=probability,
            flagged=probability >= threshold,
        )
        for number, (start, end), probability in zip(ids, offsets, probabilities(loaded, ids), strict=True)
    ]


def probabilities(loaded: Loaded, ids: list[int]) -> list[float]:
    """The probability that each token was replaced, taken from the window that shows most of its surroundings."""
    room = text_room(loaded)
    cls, sep = loaded.tokenizer.cls_id, loaded.tokenizer.sep_id
    result = [0.0] * len(ids)
    best = best_windows(len(ids), room)
    windows = window_starts(len(ids), room)
    for first in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = windows[first : first + WINDOWS_AT_ONCE]
        rows = torch.tensor([[cls, *ids[start : start + room], sep] for start in batch])
        for start, row in zip(batch, loaded.probabilities(rows)[:, 1:-1].tolist(), strict=True):
            for place, probability in enumerate(row):
                if best[start + place] == start:
                    result[start + place] = probability
    return result


def text_room(loaded: Loaded) -> int:
    """How many tokens of a text the model reads at once."""
    room = loaded.length - 2
    if room < 1:
        raise CheckpointError(loaded.path, f"a length of {loaded.length} has no room for text")
    return room


def window_starts(count: int, room: int) -> list[int]:
    """Where windows of `room` tokens begin: half a window apart, the last one ending with the text."""
    if count <= room:
        return [0] if count else []
    return [*range(0, count - room, max(1, room // 2)), count - room]


def best_windows(count: int, room: int) -> list[int]:
    """For each token the start of the window that shows most of its surroundings."""
    best, seen_around = [0] * count, [-1] * count
    for start in window_starts(count, room):
        size = min(room, count)
        for place in range(size):
            around = min(place, size - 1 - place)
            if around > seen_around[start + place]:
                best[start + place], seen_around[start + place] = start, around
    return best
