"""The stream of samples: the same for any number of processes and micro-batches, and from any place in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny import SPECIALS, Documents, numbered

from electra.batches.epoch_plan import plan_epoch
from electra.batches.loader import Batch, Loader, Stream
from electra.batches.order import Cursor, permutation, sample_keys
from electra.batches.sequences import unpack
from electra.config.schema import DataConfig, MaskingConfig
from electra.errors import ConfigError, DataError
from electra.ops.reference.choose_masked import choose_masked
from electra.train.parallel import World

LENGTH = 16
DATA = DataConfig(length=LENGTH, short=0.3)
SPLIT = Documents(numbered([[5, 9, 2, 14, 3], [7, 7, 1, 1], [4], [16, 16, 3], [2, 2, 2, 2, 2, 2, 2, 2, 2]] * 2))
CPU = torch.device("cpu")
START = Cursor()


def stream(seed: int = 0, split: Documents = SPLIT, data: DataConfig = DATA) -> Stream:
    return Stream(split, data, SPECIALS, seed=seed)


def first_batches(
    number: int, *, batch_size: int, seed: int = 0, cursor: Cursor = START, share: slice | None = None
) -> list[Batch]:
    loader = Loader(stream(seed), cursor, batch_size=batch_size, device=CPU, share=share)
    try:
        return list(islice(loader, number))
    finally:
        loader.close()


def masks(rows: torch.Tensor) -> torch.Tensor:
    batch = unpack(rows)
    masked = choose_masked(batch.ids_BL, batch.lengths_B, batch.keys_B, masking=MaskingConfig(), special=(2, 3, 4))
    return torch.where(masked.used_BM, masked.positions_BM, -1)


@settings(max_examples=25)
@given(world=st.integers(1, 8), each=st.integers(1, 5), micro=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_promise_03_order_and_masks_do_not_depend_on_the_processes(
    world: int, each: int, micro: int, seed: int
) -> None:
    batch_size = world * each
    alone = first_batches(4, batch_size=batch_size, seed=seed)
    shares = [World(rank, world).share(batch_size) for rank in range(world)]
    ranks = [first_batches(4, batch_size=batch_size, seed=seed, share=share) for share in shares]
    for step, batch in enumerate(alone):
        assert all(rank[step].after == batch.after for rank in ranks)
        together = torch.cat([rank[step].rows for rank in ranks])
        assert torch.equal(together, batch.rows)
        parts = [masks(part) for rank in ranks for part in rank[step].rows.split(micro)]
        assert torch.equal(torch.cat(parts), masks(batch.rows))


def test_promise_03_the_batch_size_does_not_change_the_order() -> None:
    whole = stream().take(Cursor(), 120)[0]
    for batch_size in (1, 7, 24, 40):
        rows = torch.cat([batch.rows for batch in first_batches(120 // batch_size, batch_size=batch_size)])
        assert rows.tolist() == whole[: len(rows)].tolist()


def test_a_share_is_a_part_of_the_batch() -> None:
    for size in range(1, 9):
        slices = [World(rank, size).share(24 * size) for rank in range(size)]
        assert [i for part in slices for i in range(24 * size)[part]] == list(range(24 * size))
    with pytest.raises(ConfigError, match=r"train\.batch_size: 10 is not a multiple of the 4 processes"):
        World(1, 4).share(10)
    assert World().leads and not World(1, 2).leads


def test_epochs_follow_each_other_each_a_permutation_of_its_own_layout() -> None:
    expected: list[list[int]] = []
    for epoch in range(4):
        layout = plan_epoch(SPLIT, DATA, SPECIALS, seed=5, epoch=epoch)
        order = permutation(layout.count, seed=5, epoch=epoch)
        rows, keys = layout.rows(order), sample_keys(order, seed=5, epoch=epoch)
        for ids, size, first, key in zip(rows.ids, rows.lengths, rows.a_lengths, keys, strict=True):
            expected.append([*ids.tolist(), int(size), int(first), int(key)])
    for batch_size in (1, 9, len(expected) // 2):  # one row, parts of an epoch, more than one epoch
        here, cursor, rows_seen = stream(5), Cursor(), []
        for _ in range(len(expected) // batch_size):
            rows, cursor = here.take(cursor, batch_size)
            assert len(rows) == batch_size
            rows_seen += rows.tolist()
        assert rows_seen == expected[: len(rows_seen)]


def test_an_epoch_ends_with_a_cursor_at_the_start_of_the_next() -> None:
    here = stream()
    count = here.epoch(0).layout.count
    assert here.take(Cursor(), count)[1] == Cursor(1, 0)
    assert here.take(Cursor(), count - 1)[1] == Cursor(0, count - 1)
    assert here.take(Cursor(), count + 1)[1] == Cursor(1, 1)
    # A place behind the end cannot come from this data, but must not hang a run either.
    rows, cursor = here.take(Cursor(0, count + 10), 1)
    assert rows.tolist() == here.take(Cursor(1, 0), 1)[0].tolist() and cursor == Cursor(1, 1)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 13), min_size=1, max_size=12), st.integers(0, 11))
def test_a_stream_continues_from_any_cursor(sizes: list[int], stop: int) -> None:
    here, cursor = stream(), Cursor()
    blocks, places = [], [Cursor()]
    for size in sizes:
        rows, cursor = here.take(cursor, size)
        blocks.append(rows)
        places.append(cursor)
    stop = min(stop, len(sizes))
    stored = Cursor(**json.loads(json.dumps(asdict(places[stop]))))
    rest, end = stream().take(stored, max(1, sum(sizes[stop:])))
    if stop < len(sizes):
        assert rest.tolist() == np.concatenate(blocks[stop:]).tolist() and end == cursor
    # The same stream also goes back, though it forgets old epochs.
    assert here.take(Cursor(), sizes[0])[0].tolist() == blocks[0].tolist()


def test_a_loader_continues_where_a_batch_ended() -> None:
    batches = first_batches(12, batch_size=5)
    for start in (1, 4, 11):
        later = first_batches(12 - start, batch_size=5, cursor=batches[start - 1].after)
        assert [b.rows.tolist() for b in later] == [b.rows.tolist() for b in batches[start:]]
        assert [b.after for b in later] == [b.after for b in batches[start:]]


def test_seeds_give_other_orders_and_keys() -> None:
    here, there = (stream(seed).take(Cursor(), 20)[0] for seed in (0, 1))
    assert here[:, :LENGTH].tolist() != there[:, :LENGTH].tolist()
    assert not set(here[:, -1]) & set(there[:, -1])


def test_a_samples_key_changes_with_the_epoch() -> None:
    samples = np.arange(1000)
    assert not (sample_keys(samples, seed=0, epoch=0) == sample_keys(samples, seed=0, epoch=1)).any()


def test_the_next_epoch_is_planned_before_it_is_needed() -> None:
    here, plain = stream(), stream()
    middle = here.epoch(0).layout.count // 2
    here.look_ahead(Cursor(0, middle))
    assert list(here._epochs) == [0]  # not before the middle
    for _ in range(3):
        here.look_ahead(Cursor(0, middle + 1))
    ahead = here._epochs[1]
    assert ahead.result(timeout=10).number == 1
    rows, _ = here.take(Cursor(0, middle + 1), 3 * middle)
    assert rows.tolist() == plain.take(Cursor(0, middle + 1), 3 * middle)[0].tolist()
    assert here._epochs[1] is ahead and list(here._epochs) == list(plain._epochs)


def test_an_epoch_that_cannot_be_planned_is_named_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = stream()
    count = here.epoch(0).layout.count
    monkeypatch.setattr("electra.batches.loader.permutation", lambda *_, **__: 1 // 0)
    here.look_ahead(Cursor(0, count - 1))
    assert len(here.take(Cursor(0, count - 1), 1)[0]) == 1
    with pytest.raises(ZeroDivisionError):
        here.take(Cursor(1, 0), 1)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "electra-loader"]


def test_closing_a_loader_ends_its_thread() -> None:
    assert not loader_threads()
    for used in (0, 1, 3):
        loader = Loader(stream(), Cursor(), batch_size=4, device=CPU)
        assert len(list(islice(loader, used))) == used
        assert len(loader_threads()) == 1
        loader.close()
        assert not loader_threads()
        loader.close()


class Broken(Documents):
    """Documents that can be read a few times only, as on a failing disk."""

    reads = 3

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        self.reads -= 1
        if self.reads < 0:
            raise OSError(5, "Input/output error")
        return super().gather(positions)


def test_a_loader_hands_over_its_errors() -> None:
    split = Broken(numbered([[5] * 100]))
    loader = Loader(stream(split=split), Cursor(), batch_size=2, device=CPU)
    batches: Iterator[Batch] = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match="Input/output error"):
        next(batches)
    loader.close()
    assert not loader_threads()


@pytest.mark.parametrize("layout", ["sentences", "paper-official", "packed"])
def test_data_without_a_sequence_is_named(layout: str) -> None:
    empty = stream(split=Documents([[]]), data=replace(DATA, layout=layout))
    loader = Loader(empty, Cursor(), batch_size=2, device=CPU)
    with pytest.raises(DataError, match=r"holds no whole sequence \(prepare more text or lower data.length\)"):
        next(iter(loader))
    loader.close()
