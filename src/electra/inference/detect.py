"""Which tokens of a text look replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra.inference.overlapping_windows import best_windows, text_capacity, window_starts
from electra.inference.results import DetectedToken, Detection
from electra.inference.sequence_batches import in_batches
from electra.interop.models import Loaded

BATCH_SIZE = 32


def detect(loaded: Loaded, text: str, *, threshold: float = 0.5) -> Detection:
    """Every token of the text, with the probability that it was replaced."""
    return detect_all(loaded, [text], threshold=threshold)[0]


def detect_all(
    loaded: Loaded, texts: Sequence[str], *, threshold: float = 0.5, batch_size: int = BATCH_SIZE
) -> list[Detection]:
    """`detect` for many texts, computed in batches of similar length."""
    encoded = loaded.tokenizer.encode_all_with_offsets(texts)
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
    capacity, tokenizer = text_capacity(loaded), loaded.tokenizer
    windows = [(number, start) for number, ids in enumerate(texts) for start in window_starts(len(ids), capacity)]
    rows = [[tokenizer.cls_id, *texts[n][start : start + capacity], tokenizer.sep_id] for n, start in windows]
    found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(windows)
    for numbers, outputs in in_batches(
        rows,
        lambda batch: {"found": loaded.probabilities(batch.ids_BL, batch.lengths_B, batch.segments_BL)},
        network=loaded.module,
        name="probabilities",
        batch_size=batch_size,
        pad_id=tokenizer.pad_id,
        positions=loaded.module.embeddings.positions,
    ):
        for number, row in zip(numbers, outputs["found"], strict=True):
            found[number] = row[1 : len(rows[number]) - 1]
    result: list[list[float]] = [[] for _ in texts]
    for (number, start), row in zip(windows, found, strict=True):
        if len(texts[number]) <= capacity:
            result[number] = row.tolist()
            continue
        if not start:
            result[number] = [0.0] * len(texts[number])
        best = best_windows(len(texts[number]), capacity)
        for place, probability in enumerate(row.tolist(), start):
            if best[place] == start:
                result[number][place] = probability
    return result
