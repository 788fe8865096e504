"""Batches of similar length, in an order that the seed fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from electra.batches.loader import EXTRA_COLUMNS
from electra.batches.order import permutation, sample_keys
from electra.finetune.rows import Features

CHUNK_BATCHES = 16  # rows of this many batches are sorted by length together
SUBSET_EPOCH = 1 << 30  # an address of its own for drawing a subset


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One step's sequences as packed rows (ids, length, length of segment A, key), and their targets."""

    rows: NDArray[np.int32]
    targets: NDArray[np.generic]


def step_count(rows: int, *, epochs: float, batch_size: int) -> int:
    """Steps of whole batches in so many passes over the rows; at least one."""
    return max(1, int(rows * epochs) // batch_size)


def subset(features: Features, count: int, *, seed: int) -> Features:
    """`count` sequences drawn by the seed, or all of them where there are not more (or `count` is 0)."""
    if not 0 < count < len(features.ids):
        return features
    chosen = np.sort(permutation(len(features.ids), seed=seed, epoch=SUBSET_EPOCH)[:count])
    targets = features.targets
    return Features(
        ids=[features.ids[i] for i in chosen],
        a_lengths=[features.a_lengths[i] for i in chosen],
        targets=[targets[i] for i in chosen]
        if isinstance(targets, list)
        else None
        if targets is None
        else targets[chosen],
    )


def batches(
    features: Features, *, steps: int, batch_size: int, seed: int, pad_id: int, grain: int, positions: int
) -> Iterator[Batch]:
    """`steps` batches of exactly `batch_size` rows: pass after pass over the features, nothing left out between them.

    Rows of a few batches of one pass are sorted by length together, so a batch holds little padding; lengths are
    multiples of `grain`. Each visit of a row has a dropout key of its own. Fewer steps are the first of more.
    """
    assert features.ids, "rows to train on"
    sizes = np.array([len(ids) for ids in features.ids])
    visits = _visits(len(sizes), seed=seed)
    step = 0
    while step < steps:
        left = len(sizes) - step * batch_size % len(sizes)
        # Whole batches of this pass only: sorted together, several visits of one row would share a batch.
        count = max(1, min(CHUNK_BATCHES, left // batch_size))
        drawn = [next(visits) for _ in range(count * batch_size)]
        samples, keys = np.array([one[0] for one in drawn]), np.array([one[1] for one in drawn], np.int32)
        by_length = np.argsort(sizes[samples], kind="stable").reshape(count, batch_size)
        for number in permutation(count, seed=seed, epoch=~step)[: steps - step]:
            picked = by_length[number]
            rows = pack(features, samples[picked], pad_id=pad_id, grain=grain, positions=positions, keys=keys[picked])
            yield Batch(rows=rows, targets=targets_of(features, samples[picked], length=rows.shape[1] - EXTRA_COLUMNS))
        step += count


def pack(
    features: Features,
    picked: Sequence[int] | NDArray[np.int64],
    *,
    pad_id: int,
    grain: int,
    positions: int,
    keys: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """Rows of ids, padded to a multiple of `grain` but not beyond the model's positions, followed by length, length
    of segment A and key (0 where not given): what `unpack` takes apart."""
    sizes = [len(features.ids[i]) for i in picked]
    assert max(sizes) <= positions, f"a sequence of {max(sizes)} tokens for a model with {positions} positions"
    length = min(-(-max(sizes) // grain) * grain, positions)
    rows = np.full((len(sizes), length + EXTRA_COLUMNS), pad_id, np.int32)
    for row, (i, size) in enumerate(zip(picked, sizes, strict=True)):
        rows[row, :size] = features.ids[i]
        rows[row, length : length + 2] = size, features.a_lengths[i]
    rows[:, length + 2] = 0 if keys is None else keys
    return rows


def targets_of(features: Features, picked: NDArray[np.int64], *, length: int) -> NDArray[np.generic]:
    """The targets of some sequences; tags padded with -1 to `length`."""
    targets = features.targets
    assert targets is not None, "rows to train on have targets"
    if not isinstance(targets, list):
        return targets[picked]
    padded = np.full((len(picked), length), -1, np.int64)
    for row, i in enumerate(picked):
        padded[row, : len(targets[i])] = targets[i]
    return padded


def _visits(count: int, *, seed: int) -> Iterator[tuple[int, int]]:
    """Row numbers, pass after pass in a new order, each with the key of that visit."""
    epoch = 0
    while True:
        order = permutation(count, seed=seed, epoch=epoch)
        yield from zip(order.tolist(), sample_keys(order, seed=seed, epoch=epoch).tolist(), strict=True)
        epoch += 1
