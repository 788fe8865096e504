"""Rows with an altered copy: their form, and that all of it follows from the key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny import CLS, PAD, SEP, SPECIALS
from tiny_runs import make_data, small_config

from electra.batches.copies import SHORTEST, with_copies
from electra.batches.layout import Specials
from electra.batches.loader import Loader, Stream
from electra.batches.order import Cursor
from electra.shards.dataset import open_data

FIRST = 10


def rows_of(sizes: list[tuple[int, int]], *, width: int = 24, seed: int = 0) -> NDArray[np.int32]:
    """Rows of segments of these sizes, each of their tokens another number; (5, 0): a single segment."""
    rows = np.full((len(sizes), width + 3), PAD, np.int32)
    for number, (a, b) in enumerate(sizes):
        words = list(range(FIRST, FIRST + a + b))
        ids = [CLS, *words[:a], SEP, *([*words[a:], SEP] if b else [])]
        rows[number, : len(ids)] = ids
        rows[number, width:] = len(ids), a + 2, number * 7919 + seed
    return rows


def segments(row: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """The tokens of both segments of a row, after a check of its form."""
    *ids, length, a_length, _ = row.tolist()
    assert ids[0] == CLS and ids[a_length - 1] == SEP and ids[length - 1] == SEP
    assert ids[length:] == [PAD] * (len(ids) - length)
    found = ids[1 : a_length - 1], ids[a_length : length - 1]
    assert not {CLS, SEP, PAD} & {*found[0], *found[1]}
    return found


SIZES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=40)


@given(sizes=SIZES, seed=st.integers(0, 2**20))
def test_a_copy_is_made_of_its_own_rows_tokens(sizes: list[tuple[int, int]], seed: int) -> None:
    rows = rows_of(sizes, seed=seed)
    made = with_copies(rows, share=1.0, specials=SPECIALS)
    for before, after, (a, b) in zip(rows, made, sizes, strict=True):
        if a < SHORTEST:
            assert after.tolist() == before.tolist()
            continue
        one, two = segments(after)
        assert after[-1] == before[-1] and one and two
        assert {*one, *two} <= set(range(FIRST, FIRST + a + b))
        assert any(len(text) >= SHORTEST and text == list(range(text[0], text[0] + len(text))) for text in (one, two))


@given(sizes=SIZES, seed=st.integers(0, 2**20), share=st.floats(0, 1), at=st.integers(0, 40))
def test_a_row_depends_on_nothing_but_itself(sizes: list[tuple[int, int]], seed: int, share: float, at: int) -> None:
    rows = rows_of(sizes, seed=seed)
    whole = with_copies(rows, share=share, specials=SPECIALS)
    parts = [with_copies(part, share=share, specials=SPECIALS) for part in (rows[:at], rows[at:])]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(rows, rows_of(sizes, seed=seed)), "what was given stays as it is"


def test_as_many_rows_become_copies_as_asked_for() -> None:
    rows = rows_of([(10, 9)] * 20_000)
    made = with_copies(rows, share=0.25, specials=SPECIALS)
    assert (made != rows).any(1).mean() == pytest.approx(0.25, abs=0.01)
    assert np.array_equal(with_copies(rows, share=0.0, specials=SPECIALS), rows)


def test_copies_share_all_some_and_none_of_their_words() -> None:
    made = with_copies(rows_of([(10, 9)] * 4_000), share=1.0, specials=SPECIALS)
    shares = []
    for row in made:
        one, two = (set(text) for text in segments(row))
        shares.append(len(one & two) / len(one | two))
    spread = np.histogram(shares, bins=[0, 0.01, 0.35, 0.7, 0.99, 1.01])[0] / len(shares)
    assert spread.min() > 0.05, spread
    turned = sum(sorted(one) == sorted(two) and one != two for one, two in map(segments, made))
    assert turned > 0.02 * len(made), "the same words in another order"


def test_each_process_makes_the_copies_of_its_own_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = open_data(make_data(tmp_path_factory.mktemp("data") / "data"))
    specials = Specials.of(data.tokenizer())
    stream = Stream(data.train, small_config().data, specials, seed=3)
    plain, _ = stream.take(Cursor(), 64)
    parts = []
    for share in (slice(0, 40), slice(40, 64)):
        loader = Loader(stream, Cursor(), batch_size=64, device=torch.device("cpu"), share=share, copies=0.5)
        batch = next(iter(loader))
        loader.close()
        parts.append(batch.rows.numpy())
    assert np.array_equal(np.concatenate(parts), with_copies(plain, share=0.5, specials=specials))
    assert 0.2 < (np.concatenate(parts) != plain).any(1).mean() < 0.6
