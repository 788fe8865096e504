"""Which tokens of a text look replaced.

Shapes: B sequences, L length, T tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra.batches.layout import number_ranges
from electra.finetune.batch_outputs import in_batches
from electra.inference.overlapping_windows import cut, text_capacity
from electra.inference.results import Detection, Detections
from electra.interop.models import Loaded
from electra.tokenizer.many_texts import FlatIds, encode_many

BATCH_SIZE = 32


def detect(loaded: Loaded, text: str, *, threshold: float = 0.5) -> Detection:
    """Every token of the text, with the probability that it was replaced."""
    return detect_all(loaded, [text], threshold=threshold)[0]


def detect_all(
    loaded: Loaded, texts: Sequence[str], *, threshold: float = 0.5, batch_size: int = BATCH_SIZE
) -> Detections:
    """`detect` for many texts, computed in batches of similar length; tokens are made when they are read."""
    encoded = encode_many(loaded.tokenizer, texts)
    return Detections(
        texts=tuple(texts),
        found_T=_probabilities(loaded, encoded, batch_size=batch_size),
        ends_N=np.cumsum(encoded.sizes),
        tokenizer=loaded.tokenizer,
        threshold=threshold,
    )


def probabilities(loaded: Loaded, texts: Sequence[list[int]]) -> list[list[float]]:
    """The probability that each token of each text was replaced, from the window with the most context around it."""
    encoded = FlatIds.of(texts)
    found_T = _probabilities(loaded, encoded, batch_size=BATCH_SIZE)
    ends = np.cumsum(encoded.sizes).tolist()
    return [found_T[first:end].tolist() for first, end in zip([0, *ends], ends, strict=False)]


def _probabilities(loaded: Loaded, texts: FlatIds, *, batch_size: int) -> NDArray[np.float32]:
    """(T,) `probabilities` of all texts' tokens end to end."""
    windows = cut(texts, capacity=text_capacity(loaded), tokenizer=loaded.tokenizer)
    found_T = np.zeros(len(texts.ids), np.float32)
    in_row = windows.best_W - windows.starts_W + 1  # [CLS] is the row's first
    counts = windows.best_ends_W - windows.best_W
    for numbers, outputs in in_batches(
        windows.sequences,
        lambda batch: {"found": loaded.probabilities(batch.ids_BL, batch.lengths_B, batch.segments_BL)},
        network=loaded.module,
        name="probabilities",
        batch_size=batch_size,
        pad_id=loaded.tokenizer.pad_id,
        positions=loaded.module.embeddings.positions,
    ):
        found_BL = outputs["found"]
        row_starts = np.arange(len(numbers)) * found_BL.shape[1] + in_row[numbers]
        here, there = (number_ranges(first, counts[numbers]) for first in (row_starts, windows.best_W[numbers]))
        found_T[there] = found_BL.ravel()[here]
    return found_T
