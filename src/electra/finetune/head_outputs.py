"""A fine-tuned network's outputs for many sequences, in the order of the sequences.

Shapes: N sequences, B of them in a batch, L length, C outputs, K beam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from electra.batches.sequences import unpack
from electra.finetune.batching import FlatSequences, pack
from electra.finetune.task_model import TaskModel
from electra.tasks.rows import Features, HeadOutputs
from electra.train.replay import Arrays, fetched, replays_of, sent

_GRAIN = 8  # lengths are padded to a multiple of this: few shapes, and whole tiles on a GPU
_GPU_LEAST = 16  # fused encoders begin there
_SPAN_SCORES = 1 << 18  # starts times tokens of a batch: the end scores take 512 numbers for each of them

_Row = dict[str, NDArray[np.generic]]


def head_outputs(
    network: TaskModel,
    features: Features,
    *,
    device: torch.device,
    batch_size: int = 128,
    beam: int = 20,
    pad_id: int,
    on_batch: Callable[[int], None] | None = None,
) -> HeadOutputs:
    """What `TaskModel.predict` gives for each sequence, as numpy arrays; the network must be on `device` already.

    A span head's short batches can have fewer than K starts: the rest is position 0 with a score of -inf.
    The result does not depend on the batches' order or shapes. `on_batch` is called after each batch with the
    number of sequences done.
    """
    count, span = len(features.ids), network.spec.kind == "span"
    sequences = FlatSequences.of(features)
    positions = network.embeddings.positions
    rows: list[_Row | None] = [None] * count
    finished, replays = 0, replays_of(network)

    def collect(numbers: list[int], outputs: Callable[[], Arrays]) -> None:
        nonlocal finished
        arrays = outputs()
        for place, number in enumerate(numbers):
            rows[number] = {name: array[place] for name, array in arrays.items()}
        finished += len(numbers)
        if on_batch:
            on_batch(finished)

    with torch.inference_mode():
        before: tuple[list[int], Callable[[], Arrays]] | None = None
        least = _GPU_LEAST if device.type == "cuda" else 1
        for numbers in _batches(features, batch_size=batch_size, beam=beam if span else 0):
            packed = pack(sequences, numbers, pad_id=pad_id, grain=_GRAIN, least=least, positions=positions)
            predicted = replays.run(beam, lambda one: network.predict(unpack(one), beam=beam), sent(packed, device))
            outputs = fetched(predicted)
            if before:  # fetched while the device computes the next one
                collect(*before)
            before = numbers, outputs
        if before:
            collect(*before)
    whole = [row for row in rows if row is not None]
    assert len(whole) == count
    if span:
        return _stack_spans(whole, beam=beam)
    if network.spec.kind == "tag":
        return {"scores": [row["scores"][: len(ids)] for row, ids in zip(whole, features.ids, strict=True)]}
    if network.spec.kind == "pairs":
        empty = np.zeros((0, network.encoder.shape.width), np.float32)
        return {"vectors": np.stack([row["vectors"] for row in whole]) if whole else empty}
    width = 1 if network.spec.kind == "regress" else len(network.spec.labels)
    return {"scores": np.stack([row["scores"] for row in whole]) if whole else np.zeros((0, width), np.float32)}


def _batches(features: Features, *, batch_size: int, beam: int) -> Iterator[list[int]]:
    """Numbers of the sequences, the longest first: too little memory shows at once."""
    order = sorted(range(len(features.ids)), key=lambda number: -len(features.ids[number]))
    first = 0
    while first < len(order):
        length = len(features.ids[order[first]])
        size = min(batch_size, max(1, _SPAN_SCORES // (beam * length))) if beam else batch_size
        yield order[first : first + size]
        first += size


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
