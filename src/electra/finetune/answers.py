"""What a fine-tuned network says about many sequences, in the order in which they were given.

Shapes: N sequences, B of them in a batch, L length, C outputs, K beam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from electra.batches.sequences import unpack
from electra.finetune.batching import Texts, pack
from electra.finetune.network import Tuned
from electra.finetune.rows import Features
from electra.finetune.spans import SpanScores

Said = dict[str, NDArray[np.generic] | list[NDArray[np.generic]]]

_STEP = 8  # lengths are padded to a multiple of this: few shapes, and whole tiles on a GPU
_SPAN_SCORES = 1 << 18  # starts times tokens of a batch: the end scores take 512 numbers for each of them


def answers(
    tuned: Tuned,
    features: Features,
    *,
    device: torch.device,
    batch_size: int = 128,
    beam: int = 20,
    pad_id: int,
    done: Callable[[int], None] | None = None,
) -> Said:
    """What `Tuned.answer` gives for each sequence, as numpy arrays; the network must be on `device` already.

    Texts: `scores` (N, C). Tags: `scores`, a list of (length, C). Spans: `starts` and `start_at` (N, K), `ends` and
    `end_at` (N, K, K), `null` (N,); what a short batch has less than K of is position 0 with a score of -inf.
    Nothing is kept of the batches' order or shapes. `done` is told after each batch how many sequences are through.
    """
    count, span = len(features.ids), tuned.spec.kind == "span"
    texts = Texts.of(features)
    found: list[dict[str, NDArray[np.generic]] | None] = [None] * count
    finished = 0
    with torch.inference_mode():
        before: tuple[list[int], dict[str, torch.Tensor]] | None = None
        for chosen in _batches(features, batch_size=batch_size, beam=beam if span else 0):
            rows = torch.from_numpy(pack(texts, chosen, pad_id=pad_id, grain=_STEP, positions=_positions(tuned)))
            said = tuned.answer(unpack(rows.to(device, non_blocking=True)), beam=beam)
            for batch in (before,) if before else ():  # fetched while the device works on the next one
                finished += _keep(found, batch[0], batch[1])
                if done:
                    done(finished)
            before = chosen, said
        if before:
            finished += _keep(found, before[0], before[1])
            if done:
                done(finished)
    whole = [row for row in found if row is not None]
    assert len(whole) == count
    if span:
        return _spans(whole, beam=beam)
    if tuned.spec.kind == "tag":
        return {"scores": [row["scores"][: len(ids)] for row, ids in zip(whole, features.ids, strict=True)]}
    outputs = 1 if tuned.spec.kind == "regress" else len(tuned.spec.labels)
    scores = np.stack([row["scores"] for row in whole]) if whole else np.zeros((0, outputs), np.float32)
    return {"scores": scores}


def span_scores(said: Said) -> SpanScores:
    """What a span head said, as `decode` takes it."""
    arrays: dict[str, NDArray[Any]] = {name: np.asarray(value) for name, value in said.items()}
    return SpanScores(
        starts_NK=arrays["starts"],
        start_at_NK=arrays["start_at"],
        ends_NKK=arrays["ends"],
        end_at_NKK=arrays["end_at"],
        impossible_N=arrays["null"],
    )


def _positions(tuned: Tuned) -> int:
    return tuned.embeddings.position.num_embeddings


def _batches(features: Features, *, batch_size: int, beam: int) -> Iterator[list[int]]:
    """Numbers of the sequences, the longest first: too little memory shows at once."""
    order = sorted(range(len(features.ids)), key=lambda number: -len(features.ids[number]))
    first = 0
    while first < len(order):
        length = len(features.ids[order[first]])
        size = min(batch_size, max(1, _SPAN_SCORES // (beam * length))) if beam else batch_size
        yield order[first : first + size]
        first += size


def _keep(found: list[dict[str, NDArray[np.generic]] | None], chosen: list[int], said: dict[str, torch.Tensor]) -> int:
    arrays = {name: tensor.cpu().numpy() for name, tensor in said.items()}
    for place, number in enumerate(chosen):
        found[number] = {name: array[place] for name, array in arrays.items()}
    return len(chosen)


def _spans(rows: list[dict[str, NDArray[np.generic]]], *, beam: int) -> Said:
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
