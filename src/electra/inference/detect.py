"""Which tokens of a text look replaced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from electra.inference.overlapping_windows import best_windows, text_capacity, window_starts
from electra.inference.results import DetectedToken, Detection
from electra.interop.models import Loaded

BATCH_SIZE = 32


def detect(loaded: Loaded, text: str, *, threshold: float = 0.5) -> Detection:
    """Every token of the text, with the probability that it was replaced."""
    return detect_all(loaded, [text], threshold=threshold)[0]


def detect_all(
    loaded: Loaded, texts: Sequence[str], *, threshold: float = 0.5, batch_size: int = BATCH_SIZE
) -> list[Detection]:
    """`detect` for many texts, computed in batches of similar length."""
    encoded = [loaded.tokenizer.encode_with_offsets(text) for text in texts]
    found = probabilities(loaded, [ids for ids, _ in encoded], batch_size=batch_size)
    return [
        Detection(
            text=text,
            tokens=tuple(
                DetectedToken(
                    token=loaded.tokenizer.token(number),
                    start=start,
                    end=end,
                    probability=probability,
                    flagged=probability >= threshold,
                )
                for number, (start, end), probability in zip(ids, offsets, its, strict=True)
            ),
        )
        for text, (ids, offsets), its in zip(texts, encoded, found, strict=True)
    ]


def probabilities(loaded: Loaded, texts: Sequence[list[int]], *, batch_size: int = BATCH_SIZE) -> list[list[float]]:
    """The probability that each token of each text was replaced, from the window with the most context around it."""
    capacity = text_capacity(loaded)
    best = [best_windows(len(ids), capacity) for ids in texts]
    windows = [(number, start) for number, ids in enumerate(texts) for start in window_starts(len(ids), capacity)]
    windows.sort(key=lambda window: -len(texts[window[0]]))  # batches of similar length
    result = [[0.0] * len(ids) for ids in texts]
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        rows = _window_probabilities(loaded, [texts[number][start : start + capacity] for number, start in batch])
        for (number, start), row in zip(batch, rows, strict=True):
            for place, probability in enumerate(row, start):
                if best[number][place] == start:
                    result[number][place] = probability
    return result


def _window_probabilities(loaded: Loaded, windows: list[list[int]]) -> list[list[float]]:
    """For every token of each window, without [CLS], [SEP] and padding."""
    cls, sep, pad = loaded.tokenizer.cls_id, loaded.tokenizer.sep_id, loaded.tokenizer.pad_id
    device = next(loaded.module.parameters()).device
    longest = max(len(window) for window in windows)
    rows = [[cls, *window, sep] + [pad] * (longest - len(window)) for window in windows]
    lengths = [len(window) + 2 for window in windows]
    found = loaded.probabilities(torch.tensor(rows, device=device), torch.tensor(lengths, device=device)).tolist()
    return [row[1 : length - 1] for row, length in zip(found, lengths, strict=True)]
