"""Batches of similar length, in an order that the seed fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from electra.batches.loader import EXTRA_COLUMNS
from electra.batches.order import permutation, sample_keys
from electra.tasks.rows import Features

CHUNK_BATCHES = 16  # rows of this many batches are sorted by length together
SUBSET_EPOCH = 1 << 30  # an address of its own for drawing a subset


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One step's sequences as rows (ids, length, length of segment A, key), and their targets."""

    rows: NDArray[np.int32]
    targets: NDArray[np.generic]


def step_count(rows: int, *, epochs: float, batch_size: int) -> int:
    """Whole batches in this many epochs; at least one."""
    return max(1, int(rows * epochs) // batch_size)


def subset(features: Features, count: int, *, seed: int) -> Features:
    """All sequences of `count` rows drawn by the seed, or of all rows where there are not more (or `count` is 0)."""
    row_of = np.arange(len(features.ids)) if features.rows is None else features.rows
    rows = np.unique(row_of)
    if not 0 < count < len(rows):
        return features
    drawn = rows[permutation(len(rows), seed=seed, epoch=SUBSET_EPOCH)[:count]]
    chosen = np.flatnonzero(np.isin(row_of, drawn))
    targets = features.targets
    return Features(
        ids=[features.ids[i] for i in chosen],
        a_lengths=[features.a_lengths[i] for i in chosen],
        targets=[targets[i] for i in chosen]
        if isinstance(targets, list)
        else None
        if targets is None
        else targets[chosen],
        rows=None if features.rows is None else features.rows[chosen],
        group=features.group,
    )


def batches(
    features: Features,
    *,
    steps: int,
    batch_size: int,
    seed: int,
    pad_id: int,
    grain: int,
    positions: int,
    first: int = 0,
) -> Iterator[Batch]:
    """`steps` batches of exactly `batch_size` rows, epoch after epoch over the features, without leaving rows out.

    A row is a sequence, or the `group` of sequences that belong together, which stand one after the other.

    The batches before number `first` are passed over.

    Rows of a few batches of one epoch are sorted by length together, so a batch holds little padding; lengths are
    multiples of `grain`. Each visit of a sequence has a dropout key of its own. A run of fewer steps has the first
    batches of a longer one.
    """
    assert features.ids, "rows to train on"
    sequences = FlatSequences.of(features)
    sizes = sequences.sizes.reshape(-1, features.group).max(1)
    visits = _visits(len(sizes), group=features.group, seed=seed)
    step = 0
    while step < steps:
        left = len(sizes) - step * batch_size % len(sizes)
        # Whole batches of this epoch only: sorted together, several visits of one row would share a batch.
        count = max(1, min(CHUNK_BATCHES, left // batch_size))
        drawn = [next(visits) for _ in range(count * batch_size)]
        samples, keys = np.array([one[0] for one in drawn]), np.array([one[1] for one in drawn], np.int32)
        by_length = np.argsort(sizes[samples], kind="stable").reshape(count, batch_size)
        for place, number in enumerate(permutation(count, seed=seed, epoch=~step)[: steps - step]):
            if step + place < first:
                continue
            drawn_keys = keys[by_length[number]].ravel()
            picked = in_groups(samples[by_length[number]], features.group).ravel()
            rows = pack(sequences, picked, pad_id=pad_id, grain=grain, positions=positions, keys=drawn_keys)
            yield Batch(rows=rows, targets=targets_of(features, picked, length=rows.shape[1] - EXTRA_COLUMNS))
        step += count


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatSequences:
    """The token ids of all sequences in one array, so that one gather makes a batch."""

    ids: NDArray[np.int32]
    """The first entry stands for padding, so that the array is never empty."""
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    a_lengths: NDArray[np.int32]

    @staticmethod
    def of(features: Features) -> FlatSequences:
        sizes = np.fromiter(map(len, features.ids), np.int64, len(features.ids))
        ids = np.fromiter(chain([0], *features.ids), np.int32, 1 + int(sizes.sum()))
        a_lengths = np.asarray(features.a_lengths, np.int32)
        return FlatSequences(ids=ids, starts=np.cumsum(sizes) - sizes + 1, sizes=sizes, a_lengths=a_lengths)


def pack(
    sequences: FlatSequences,
    picked: Sequence[int] | NDArray[np.int64],
    *,
    pad_id: int,
    grain: int,
    positions: int,
    least: int = 1,
    keys: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """Rows of ids, then length, length of segment A and dropout key (0 without `keys`): what `unpack` takes apart.

    Ids are padded to a multiple of `grain` and to at least `least`, but not beyond the model's positions.
    """
    chosen = np.asarray(picked, np.int64)
    sizes = sequences.sizes[chosen]
    longest = int(sizes.max())
    assert longest <= positions, f"a sequence of {longest} tokens for a model with {positions} positions"
    length = min(max(-(-longest // grain) * grain, least), positions)
    place = np.arange(length)
    inside = place < sizes[:, None]
    rows = np.empty((len(chosen), length + EXTRA_COLUMNS), np.int32)
    rows[:, :length] = np.where(inside, sequences.ids[(sequences.starts[chosen][:, None] + place) * inside], pad_id)
    rows[:, length] = sizes
    rows[:, length + 1] = sequences.a_lengths[chosen]
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


def in_groups(rows: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """(rows, group) numbers of the sequences of each row."""
    return rows[:, None] * group + np.arange(group)


def _visits(count: int, *, group: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    """Row numbers, each epoch in a new order, each with the dropout keys of that visit, one a sequence."""
    epoch = 0
    while True:
        order = permutation(count, seed=seed, epoch=epoch)
        keys = sample_keys(in_groups(order, group), seed=seed, epoch=epoch)
        yield from zip(order.tolist(), keys.tolist(), strict=True)
        epoch += 1
