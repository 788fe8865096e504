"""A fine-tuned network's outputs for many sequences, in the order of the sequences.

Shapes: N sequences, B of them in a batch, L length, C outputs, K beam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from electra.finetune.batch_outputs import in_batches
from electra.finetune.batching import FlatSequences
from electra.finetune.task_model import TaskModel
from electra.tasks.rows import Features, HeadOutputs

_SPAN_SCORES = 1 << 18  # starts times tokens of a batch: the end scores take 512 numbers for each of them

_Row = dict[str, NDArray[np.generic]]


def head_outputs(
    network: TaskModel,
    features: Features,
    *,
    batch_size: int = 128,
    beam: int = 20,
    pad_id: int,
    on_batch: Callable[[int], None] | None = None,
) -> HeadOutputs:
    """What `TaskModel.predict` gives for each sequence, as numpy arrays.

    A span head's short batches can have fewer than K starts: the rest is position 0 with a score of -inf.
    The result does not depend on the batches' order or shapes. `on_batch` is called after each batch with the
    number of sequences done.
    """
    count, kind = len(features.ids), network.spec.kind
    span = kind == "span"
    width = {"regress": 1, "pairs": network.encoder.shape.width}.get(kind, len(network.spec.labels))
    whole = np.zeros((count, width), np.float64 if kind == "regress" else np.float32)
    rows: list[_Row] = [{} for _ in range(count)] if kind in ("span", "tag") else []
    finished = 0

    def size_of(longest: int) -> int:
        return min(batch_size, max(1, _SPAN_SCORES // (beam * longest))) if span else batch_size

    for numbers, arrays in in_batches(
        FlatSequences.of(features),
        lambda batch: network.predict(batch, beam=beam),
        network=network,
        name=beam,
        batch_size=size_of,
        pad_id=pad_id,
        positions=network.embeddings.positions,
    ):
        if rows:
            for place, number in enumerate(numbers.tolist()):
                rows[number] = {name: array[place] for name, array in arrays.items()}
        else:
            whole[numbers] = next(iter(arrays.values()))
        finished += len(numbers)
        if on_batch:
            on_batch(finished)
    if span:
        return _stack_spans(rows, beam=beam)
    if kind == "tag":
        return {"scores": [row["scores"][: len(ids)] for row, ids in zip(rows, features.ids, strict=True)]}
    return {"vectors" if kind == "pairs" else "scores": whole}


def _stack_spans(rows: list[_Row], *, beam: int) -> HeadOutputs:
    """The rows stacked to one K."""
    width = max((len(row["starts"]) for row in rows), default=beam)
    count = len(rows)
    starts = np.full((count, width), -np.inf, np.float32)
    ends = np.full((count, width, width), -np.inf, np.float32)
    start_at, end_at = np.zeros(starts.shape, np.int32), np.zeros(ends.shape, np.int32)
    null = np.zeros(count, np.float32)
    for number, row in enumerate(rows):
        k = len(row["starts"])
        starts[number, :k], start_at[number, :k] = row["starts"], row["start_at"]
        ends[number, :k, :k], end_at[number, :k, :k] = row["ends"], row["end_at"]
        null[number] = row["null"]
    return {"starts": starts, "start_at": start_at, "ends": ends, "end_at": end_at, "null": null}
