"""Which tokens of a text look replaced."""

from __future__ import annotations

import torch

from electra.inference.overlapping_windows import best_windows, text_capacity, window_starts
from electra.inference.results import DetectedToken, Detection
from electra.interop.models import Loaded

BATCH_WINDOWS = 16


def detect(loaded: Loaded, text: str, *, threshold: float = 0.5) -> Detection:
    """Every token of the text, with the probability that it was replaced."""
    ids, offsets = loaded.tokenizer.encode_with_offsets(text)
    found = zip(ids, offsets, probabilities(loaded, ids), strict=True)
    tokens = tuple(
        DetectedToken(
            token=loaded.tokenizer.token(number),
            start=start,
            end=end,
            probability=probability,
            flagged=probability >= threshold,
        )
        for number, (start, end), probability in found
    )
    return Detection(text=text, tokens=tokens)


def probabilities(loaded: Loaded, ids: list[int]) -> list[float]:
    """The probability that each token was replaced, from the window that has the most context around it."""
    capacity = text_capacity(loaded)
    cls, sep = loaded.tokenizer.cls_id, loaded.tokenizer.sep_id
    result = [0.0] * len(ids)
    best = best_windows(len(ids), capacity)
    windows = window_starts(len(ids), capacity)
    device = next(loaded.module.parameters()).device
    for first in range(0, len(windows), BATCH_WINDOWS):
        batch = windows[first : first + BATCH_WINDOWS]
        rows = torch.tensor([[cls, *ids[start : start + capacity], sep] for start in batch], device=device)
        for start, row in zip(batch, loaded.probabilities(rows)[:, 1:-1].tolist(), strict=True):
            for place, probability in enumerate(row):
                if best[start + place] == start:
                    result[start + place] = probability
    return result
