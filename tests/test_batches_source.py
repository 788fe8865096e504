"""Short sequences and small batches first, copies last: what a step reads, and exact resuming around every change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import SPECIALS, Documents, Trainer, numbered, ragged_rows, tiny_config
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights

from electra.batches.copies import with_copies
from electra.batches.order import Cursor
from electra.batches.source import Source, StepRows
from electra.checkpoint import store
from electra.checkpoint.lengthening import position_of
from electra.config.load import load
from electra.config.schema import Config, DataConfig, TrainConfig
from electra.errors import ConfigError
from electra.fsio import read_json, write_json
from electra.model.cost import train_flops
from electra.pretrain import pretrain
from electra.report.reading import Run
from electra.train.schedule import TimeBudget, batch_size, makes_copies, takes_short


def source(*, batch_size: int = 4) -> Source:
    split = Documents(numbered([[5, 9, 7]] * 60))
    data = DataConfig(length=32, length_start=16, short=0.0)
    return Source(
        split, data, SPECIALS, seed=3, batch_size=batch_size, device=torch.device("cpu"), share=lambda rows: slice(rows)
    )


def taken(made: Source, step: int, cursor: Cursor, count: int, *, short: int) -> list[tuple[np.ndarray, Cursor]]:
    batches = made.batches(
        step,
        cursor,
        rows_at=lambda step: StepRows(step < short, made.last.batch_size, copies=False),
        length=16 if 0 < step <= short else 32,
    )
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


GROWS = TrainConfig(batch_start=2, batch_size=8, batch_share=0.6, steps=10)


def grown(step: int, cursor: Cursor, count: int) -> list[tuple[np.ndarray, Cursor]]:
    made = source(batch_size=8)
    batches = made.batches(
        step,
        cursor,
        rows_at=lambda step: StepRows(step < 4, batch_size(step, train=GROWS, elapsed_s=0), copies=False),
        length=16 if 0 < step <= 4 else 32,
    )
    found = [(batch.rows.numpy(), batch.after) for _, batch in zip(range(count), batches, strict=False)]
    batches.close()
    return found


def test_a_batch_doubles_and_goes_on_where_the_smaller_one_ended() -> None:
    sizes = [batch_size(step, train=GROWS, elapsed_s=0) for step in range(10)]
    assert sizes == [2] * 3 + [4] * 3 + [8] * 4
    found = grown(0, Cursor(), 8)  # the first four steps have sequences of half the length, twice as many
    assert [rows.shape for rows, _ in found] == [(4, 19)] * 3 + [(8, 19)] + [(4, 35)] * 2 + [(8, 35)] * 2
    in_order, _ = source().stream(source().short).take(Cursor(), 20)
    assert np.array_equal(np.concatenate([rows for rows, _ in found[:4]]), in_order)
    for stop in range(1, 8):
        for (rows, after), (again, there) in zip(found[stop:], grown(stop, found[stop - 1][1], 8 - stop), strict=True):
            assert np.array_equal(rows, again) and after == there


def test_when_batches_are_small() -> None:
    timed = TrainConfig(batch_start=32, batch_size=128, batch_share=0.5, max_minutes=1.0)
    by_clock = [batch_size(10**6, train=timed, elapsed_s=s) for s in (0, 14.9, 15, 29.9, 30, 59, 61)]
    assert by_clock == [32, 32, 64, 64, 128, 128, 128]
    assert batch_size(0, train=TrainConfig(batch_size=48), elapsed_s=0) == 48
    for wrong in ("3", "96", "256"):
        with pytest.raises(ConfigError, match=rf"train\.batch_start: {wrong} does not become .* 128 by doubling"):
            load("small", overrides=[f"train.batch_start={wrong}"])


def test_a_time_budget_foresees_larger_batches() -> None:
    """A minute in which a step takes a millisecond a sequence: 15 s of 32, 15 s of 64, 30 s of 128."""
    timed = TrainConfig(batch_start=32, batch_size=128, batch_share=0.5, max_minutes=1.0)
    now, step, total = 0.0, 0, None
    budget, guesses = TimeBudget(timed, elapsed=lambda: now), []
    while step != total:
        size = batch_size(step, train=timed, elapsed_s=now)
        budget.follow((size, 128))
        now, step = now + size / 1000, step + 1
        if budget.due(step):
            total = budget.total(step, total)
            guesses += [] if total is None else [total]
    truth = 15 / 0.032 + 15 / 0.064 + 30 / 0.128
    assert guesses[0] == pytest.approx(truth, rel=0.02) and step == pytest.approx(truth, rel=0.01)
    assert 59.5 < now < 60


def test_what_a_growing_batch_costs() -> None:
    config = replace(Config(), train=GROWS)
    plain = replace(Config(), train=TrainConfig(batch_size=8, steps=10))
    for steps, sequences in ((2, 4), (5, 14), (10, 50)):
        found, full = train_flops(config, steps=steps), train_flops(plain, steps=steps)
        assert found.tokens == 128 * sequences
        assert found.real / full.real == found.paper / full.paper == pytest.approx(sequences / (8 * steps))
    timed = replace(Config(), train=TrainConfig(batch_start=32, batch_size=128, max_minutes=1.0))
    steps = 15 * 4 + 15 * 2 + 30  # where every token takes as long
    assert train_flops(timed, steps=steps).tokens == 128 * (60 * 32 + 30 * 64 + 30 * 128)


def test_a_micro_batch_has_as_many_tokens() -> None:
    """Steps of 2 x 24 and of 6 x 8 tokens in halves: the same update as in one piece."""
    config = tiny_config(dropout=0.0)
    for rows in (ragged_rows(2), ragged_rows(6, length=8)):
        one, two = Trainer(config, micro=2), Trainer(config, micro=1)
        two.step._length = one.step._length = 24
        one.step(rows, 1e-3)
        two.step(rows, 1e-3)
        torch.testing.assert_close(one.master.weights, two.master.weights, atol=1e-6, rtol=1e-5)


def test_when_there_are_copies() -> None:
    data, steps = DataConfig(copies=0.5, copies_share=0.3), TrainConfig(steps=10)
    assert [makes_copies(step, data=data, train=steps, elapsed_s=0) for step in range(10)] == [False] * 7 + [True] * 3
    rare = DataConfig(copies=0.5, copies_share=0.001)
    assert [makes_copies(step, data=rare, train=steps, elapsed_s=0) for step in range(10)] == [False] * 9 + [True]
    assert makes_copies(0, data=rare, train=TrainConfig(steps=1), elapsed_s=0)
    timed = TrainConfig(max_minutes=1.0)
    assert not makes_copies(TrainConfig().steps, data=rare, train=timed, elapsed_s=59.9)
    assert not makes_copies(10**6, data=data, train=timed, elapsed_s=41.9)
    assert makes_copies(0, data=data, train=timed, elapsed_s=42.1)
    assert makes_copies(0, data=DataConfig(copies=0.5), train=steps, elapsed_s=0)
    assert not makes_copies(9, data=DataConfig(copies_share=0.5), train=steps, elapsed_s=0)


def test_copies_go_on_where_the_rows_before_ended() -> None:
    data = DataConfig(length=32, short=0.0, copies=0.8)
    made = Source(
        Documents(numbered([[5, 9, 7]] * 60)),
        data,
        SPECIALS,
        seed=3,
        batch_size=4,
        device=torch.device("cpu"),
        share=slice,
    )
    batches = made.batches(0, Cursor(), rows_at=lambda step: StepRows(False, 4, copies=step >= 3))
    found = [(one.rows.numpy(), one.after, bool(made.copies)) for _, one in zip(range(6), batches, strict=False)]
    batches.close()
    rows, after = made.stream(data).take(Cursor(), 24)
    copied = with_copies(rows[12:], share=0.8, specials=SPECIALS)
    assert np.array_equal(np.concatenate([rows for rows, _, _ in found]), np.concatenate((rows[:12], copied)))
    assert found[-1][1] == after and (copied != rows[12:]).any()
    assert [copies for _, _, copies in found] == [False] * 3 + [True] * 3


def test_lengths_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.length_start.*48 must divide data\.length 128"):
        load("small", overrides=["data.length_start=48"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.mark.parametrize(
    "changes",
    [
        ("data.length_start=16", "data.length_share=0.4"),
        ("train.batch_start=2", "train.batch_share=0.8"),
        ("data.copies=0.5", "data.copies_share=0.6", "objective.overlap_weight=2"),
    ],
    ids=["length", "batch", "copies"],
)
def test_promise_04_resuming_at_the_change_is_bitwise(tmp_path: Path, data: Path, changes: tuple[str, ...]) -> None:
    config = small_config(*changes, "train.steps=10", "evaluate.every=0")
    once, out = pretrain(config, data=data, out=tmp_path / "once"), tmp_path / "run"
    stop_at(4, config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(once) and metric_lines(out) == metric_lines(once)


def test_by_the_clock_whole_sequences_begin_an_epoch_after_a_stop_too(tmp_path: Path, data: Path) -> None:
    """A run of a minute, stopped while its sequences are short and resumed when they are whole by the clock."""
    config = small_config(
        "data.length_start=16", "data.length_share=0.5", "train.max_minutes=1", "train.steps=6", "checkpoint.every=1",
        "checkpoint.keep=9",
    )  # fmt: skip
    out = tmp_path / "run"
    stop_at(2, config, data=data, out=out)
    write_json(out / "time.json", {"elapsed_s": 31.0})
    pretrain(config, data=data, out=out)
    states = [read_json(store.checkpoint_path(out, step) / "state.json") for step in (1, 2, 3, 6)]
    assert [one["length"] for one in states] == [16, 16, 32, 32]
    places = [tuple(one["cursor"].values()) for one in states]
    assert places == [(0, 16), (0, 32), (1, 8), (1, 32)]


def test_the_rows_before_a_stop_are_those_of_then() -> None:
    """Of a checkpoint that says them, and of an older one, by its own clock or step."""
    keys = ["data.length_start=64", "data.length_share=0.5"]
    timed, stepped = (load("small", overrides=[*keys, more]) for more in ("train.max_minutes=1", "train.steps=10"))

    def length(config: Config, **state: object) -> int:
        cursor = {"epoch": 0, "offset": 5}
        whole = {"step": 5, "cursor": cursor, "tokens": 0, "elapsed_s": 29.9, "total_steps": None, **state}
        return position_of(whole, config, {}, where=Path("state.json")).length

    assert [length(timed, length=size, elapsed_s=s) for size, s in ((64, 31.0), (128, 31.0))] == [64, 128]
    assert [length(timed), length(timed, elapsed_s=30.1)] == [64, 0]
    assert [length(stepped), length(stepped, step=6)] == [64, 0]


def test_tokens_of_batches_that_followed_the_clock() -> None:
    """30 steps of 32, 20 of 64 and 10 of 128, by the times of the lines."""
    timed = TrainConfig(batch_start=32, batch_size=128, max_minutes=1.0)
    lines = [{"step": step, "time_s": s} for step, s in ((10, 4), (30, 14), (40, 20), (50, 29), (60, 50))]
    config, facts = replace(Config(), train=timed), {"ledger": {"tokens": 1000, "real": 2000, "paper": 3000}}
    run = Run(name="run", folder=Path(), config=config, facts=facts, demo=None, train=lines, evals=[], samples=[])
    tokens = 128 * (30 * 32 + 20 * 64 + 10 * 128)
    assert (run.cost.tokens, run.cost.real_flops, run.cost.paper_flops) == (tokens, 2 * tokens, 3 * tokens)
