"""Short sequences first: the same tokens a step, a second layout after the change, exact resuming around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import SPECIALS, Documents, Trainer, numbered, ragged_rows, tiny_config
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights

from electra.batches.order import Cursor
from electra.batches.short_first import Source
from electra.config.load import load
from electra.config.schema import DataConfig, TrainConfig
from electra.errors import ConfigError
from electra.pretrain import pretrain
from electra.train.schedule import takes_short


def source(*, batch_size: int = 4) -> Source:
    split = Documents(numbered([[5, 9, 7]] * 60))
    data = DataConfig(length=32, length_start=16, short=0.0)
    return Source(
        split, data, SPECIALS, seed=3, batch_size=batch_size, device=torch.device("cpu"), share=lambda rows: slice(rows)
    )


def taken(made: Source, step: int, cursor: Cursor, count: int, *, short: int) -> list[tuple[np.ndarray, Cursor]]:
    batches = made.batches(step, cursor, is_short=lambda step: step < short)
    found = [(batch.rows.numpy(), batch.after) for _, batch in zip(range(count), batches, strict=False)]
    batches.close()
    return found


def test_a_step_has_as_many_tokens_and_the_next_length_a_new_epoch() -> None:
    found = taken(source(), 0, Cursor(), 5, short=3)
    assert [rows.shape for rows, _ in found] == [(8, 19)] * 3 + [(4, 35)] * 2
    before, after = found[2][1], found[3][1]
    assert after == Cursor(before.epoch + 1, 4)
    keys = np.concatenate([rows[:, -1] for rows, _ in found])
    assert len(set(keys.tolist())) == len(keys)  # every sequence draws masks of its own


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_going_on_from_any_step_gives_the_same_batches(stop: int) -> None:
    whole = taken(source(), 0, Cursor(), 6, short=3)
    rest = taken(source(), stop, whole[stop - 1][1], 6 - stop, short=3)
    for (rows, after), (again, there) in zip(whole[stop:], rest, strict=True):
        assert np.array_equal(rows, again) and after == there


def test_when_sequences_are_short() -> None:
    data, steps = DataConfig(length=128, length_start=64, length_share=0.4), TrainConfig(steps=10)
    assert [takes_short(step, data=data, train=steps, elapsed_s=0) for step in range(6)] == [True] * 4 + [False] * 2
    timed = TrainConfig(max_minutes=1.0)
    assert takes_short(10**6, data=data, train=timed, elapsed_s=23.9)
    assert not takes_short(1, data=data, train=timed, elapsed_s=24.0)
    assert not takes_short(0, data=DataConfig(), train=steps, elapsed_s=0)


def test_a_micro_batch_has_as_many_tokens() -> None:
    """Steps of 2 x 24 and of 6 x 8 tokens in halves: the same update as in one piece."""
    config = tiny_config(dropout=0.0)
    for rows in (ragged_rows(2), ragged_rows(6, length=8)):
        one, two = Trainer(config, micro=2), Trainer(config, micro=1)
        two.step._length = one.step._length = 24
        one.step(rows, 1e-3)
        two.step(rows, 1e-3)
        torch.testing.assert_close(one.master.weights, two.master.weights, atol=1e-6, rtol=1e-5)


def test_lengths_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.length_start.*48 must divide data\.length 128"):
        load("small", overrides=["data.length_start=48"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


def test_promise_04_resuming_at_the_change_is_bitwise(tmp_path: Path, data: Path) -> None:
    config = small_config("data.length_start=16", "data.length_share=0.4", "train.steps=10", "evaluate.every=0")
    once, out = pretrain(config, data=data, out=tmp_path / "once"), tmp_path / "run"
    stop_at(4, config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(once) and metric_lines(out) == metric_lines(once)
