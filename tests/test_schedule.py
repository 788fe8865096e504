"""The learning rate of the official code, and time budgets."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra.config.load import load
from electra.config.schema import CheckpointConfig, EvaluateConfig, OptimConfig, TrainConfig
from electra.train.interlude import COST_SHARE, Interlude
from electra.train.parallel import World
from electra.train.schedule import TimeBudget, learning_rate

MILLION = 1_000_000


def test_the_official_small_schedule() -> None:
    optim = OptimConfig()
    rates = {step: learning_rate(step, optim=optim, total=MILLION) for step in (0, 1, 5_000, 10_000, 505_000, MILLION)}
    assert rates == pytest.approx(
        {
            0: 0.0,
            1: 5e-4 * 1e-4 * (1 - 1e-6),
            5_000: 5e-4 * 0.5 * 0.995,
            10_000: 4.95e-4,
            505_000: 5e-4 * 0.495,
            MILLION: 0.0,
        },
        rel=1e-12,
    )


@pytest.mark.parametrize(
    ("preset", "steps", "warmup"),
    [
        ("small", 1_000_000, 10_000),  # the paper's
        ("base", 766_000, 10_000),
        ("small", 500, 125),
        ("small", 20_000, 5_000),
        ("tiny", 3_000, 300),
        ("tiny", 200, 20),
        ("tiny", 9, 0),
    ],
)
def test_a_presets_warm_up_fits_a_shorter_run(preset: str, steps: int, warmup: int) -> None:
    config = load(preset, overrides=[f"train.steps={steps}"])
    rates = [learning_rate(step, optim=config.optim, total=steps) for step in range(min(steps, 20_000))]
    rises = [step for step, rate in enumerate(rates) if rate == pytest.approx(config.optim.lr * (1 - step / steps))]
    assert rises[0] == warmup and rises == list(range(warmup, len(rates)))


def test_steps_of_warm_up_that_are_asked_for_are_taken_as_they_are() -> None:
    def warmup(*overrides: str) -> int:
        config = load("small", overrides=["train.steps=2000", *overrides])
        return config.optim.warmup(config.train.steps)

    assert warmup("optim.warmup_steps=1500") == 1500
    assert warmup("optim.warmup_steps=1500", "optim.warmup_share=0.1") == 200
    assert warmup("optim.warmup_steps=150", "optim.warmup_share=0.1") == 150
    assert warmup("optim.warmup_share=0.1") == 200
    assert warmup("optim.warmup_share=0") == 0
    assert warmup("optim.decay_steps=1000000") == 10_000, "a longer schedule, stopped early"


def test_a_time_budget_gets_its_warm_up_when_it_becomes_steps() -> None:
    optim = load("tiny").optim
    assert optim.warmup(None) == 300
    assert optim.warmup(400) == 40 and learning_rate(40, optim=optim, total=400) == pytest.approx(optim.lr * 0.9)


def test_defect_the_first_update_has_rate_0() -> None:
    assert learning_rate(0, optim=OptimConfig(), total=MILLION) == 0.0


@given(
    step=st.integers(0, 2000), warmup=st.integers(0, 500), total=st.integers(1, 1500), decay=st.sampled_from([0, 700])
)
def test_warm_up_and_decay_multiply(step: int, warmup: int, total: int, decay: int) -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=warmup, warmup_share=1.0, decay_steps=decay)
    warmup = min(warmup, decay or total)
    rise = 1.0 if step >= warmup else step / warmup
    end = decay if decay else total
    fall = 0.0 if step >= end else (end - step) / end
    assert learning_rate(step, optim=optim, total=total) == pytest.approx(rise * fall)


def test_a_longer_decay_than_the_run() -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=0, decay_steps=MILLION)
    assert learning_rate(0, optim=optim, total=1000) == 1.0
    assert learning_rate(1000, optim=optim, total=1000) == pytest.approx(0.999)


def test_no_decay_before_a_time_budget_has_become_steps() -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=10)
    assert [learning_rate(step, optim=optim, total=None) for step in (0, 5, 10, 1000)] == [0.0, 0.5, 1.0, 1.0]


class Machine:
    """A run as the loop does it, on a clock that moves only with what is done."""

    def __init__(self, train: TrainConfig, *, step_s: float, used_s: float = 0.0) -> None:
        self.now, self.step_s = used_s, step_s
        self.intervals = {"evaluate": EvaluateConfig(every=0), "save": CheckpointConfig(every=1000, seconds=0)}
        self.took_s = {"evaluate": 0.0, "save": 0.0}
        self.train = train
        self.times = {"evaluate": 0, "save": 0}
        self.totals: list[int] = []

    def run(self, *, start: int = 0, known: int | None = None, first_s: float = 0.0) -> int:
        """The last step."""
        acts = {
            name: Interlude(self._pass, interval, elapsed=lambda: self.now, compiles=name == "evaluate")
            for name, interval in self.intervals.items()
        }
        budget = TimeBudget(self.train, elapsed=lambda: self.now, interludes=[*acts.values()])
        self.now += first_s
        if not start:
            acts["evaluate"]("evaluate")
        step, total = start, known
        while step != total:
            self.now += self.step_s
            step += 1
            if budget.due(step):
                total = budget.total(step, total)
            for name, act in acts.items():
                if step == total or act.due(step, World()):
                    act(name)
            if total is not None:
                self.totals.append(total)
            assert step < start + 300_000
        return step

    def _pass(self, name: str) -> None:
        self.now += self.took_s[name]
        self.times[name] += 1


def ten_minutes(steps: int = MILLION) -> TrainConfig:
    return TrainConfig(max_minutes=10, steps=steps)


def test_a_time_budget_becomes_steps() -> None:
    machine = Machine(ten_minutes(), step_s=0.1)
    last = machine.run(first_s=20.0)
    # 20 s of start-up, then nothing but steps of 0.1 s; the last 0.2 % are left for the way out.
    assert last == pytest.approx((600 * 0.998 - 20) / 0.1, abs=2)
    assert max(machine.totals) - min(machine.totals) <= 1, "nothing changes, so the first estimate was the last one"


@given(
    step_s=st.floats(0.02, 0.5),
    evaluate_s=st.floats(0.0, 20.0),
    save_s=st.floats(0.0, 10.0),
    evaluate_every=st.sampled_from([0, 150, 1000, 5000]),
    first_s=st.floats(0.0, 120.0),
)
@settings(max_examples=30, deadline=None)
def test_the_run_ends_with_its_budget_whatever_else_takes_time(
    step_s: float, evaluate_s: float, save_s: float, evaluate_every: int, first_s: float
) -> None:
    machine = Machine(ten_minutes(), step_s=step_s)
    machine.intervals["evaluate"] = EvaluateConfig(every=evaluate_every, seconds=0)
    machine.took_s = {"evaluate": evaluate_s, "save": save_s}
    last = machine.run(first_s=first_s)
    # What the first save takes is not known before it; nor, where it is the only one, at all. The run also stops
    # before an evaluation or save that would not fit.
    beyond = save_s * (last <= 1000)
    assert 600 * 0.998 - step_s - evaluate_s - save_s - 1e-6 <= machine.now <= 600 + beyond


def test_defect_many_evaluations_and_saves_fit_into_the_budget() -> None:
    """One early estimate left them out: 127,000 steps with 127 of each ended a minute late."""
    machine = Machine(ten_minutes(), step_s=1 / 220)
    machine.intervals["evaluate"] = EvaluateConfig(every=1000, seconds=0)
    machine.took_s = {"evaluate": 0.15, "save": 0.5}
    machine.run(first_s=15.0)
    assert 0.99 * 600 < machine.now < 600


@given(step_s=st.floats(0.01, 2.0), evaluate_s=st.floats(0.0, 5.0), save_s=st.floats(0.0, 5.0))
@example(step_s=0.32, evaluate_s=1.5, save_s=2.0)  # a save shortly before the end, long after the one before
@settings(max_examples=15, deadline=None)
def test_by_default_evaluations_and_saves_take_little_of_the_time(
    step_s: float, evaluate_s: float, save_s: float
) -> None:
    """1 % each at most, and the first and last ones, of evaluations the second too; on a fast machine there are 20
    evaluations in five minutes."""
    machine = Machine(TrainConfig(max_minutes=5, steps=MILLION), step_s=step_s)
    machine.intervals = {"evaluate": EvaluateConfig(), "save": CheckpointConfig()}
    machine.took_s = {"evaluate": evaluate_s, "save": save_s}
    machine.run()
    for name in machine.times:
        apart = 3 if name == "evaluate" else 2
        assert (machine.times[name] - apart) * machine.took_s[name] <= COST_SHARE * 300
    if evaluate_s < 0.12 and step_s < 0.03:
        assert machine.times["evaluate"] >= 20 and machine.times["save"] >= (4 if save_s < 0.6 else 1)
    assert machine.now <= 300 + save_s * (machine.times["save"] == 1)


def test_steps_that_are_set_are_exact() -> None:
    config = load("small", overrides=["evaluate.every=7", "checkpoint.every=9", "checkpoint.seconds=30"])
    assert (config.evaluate.every, config.evaluate.seconds) == (7, 0.0)
    assert (config.checkpoint.every, config.checkpoint.seconds) == (9, 30.0)
    now = [0.0]
    act = Interlude(lambda seconds: now.append(now[-1] + seconds), config.evaluate, elapsed=lambda: now[-1])
    act(100.0)  # expensive, and yet
    assert [step for step in range(1, 22) if act.due(step, World())] == [7, 14, 21]
    slow = Interlude(lambda seconds: now.append(now[-1] + seconds), config.checkpoint, elapsed=lambda: now[-1])
    slow(0.5)
    now.append(now[-1] + 49.9)
    assert not slow.due(9, World())
    now.append(now[-1] + 0.2)
    assert slow.due(9, World()) and not slow.due(10, World())


def test_defect_a_first_evaluation_that_compiles_does_not_put_off_the_next_for_minutes() -> None:
    """A bare H200 compiled for 2.6 s, so that the second of ten minutes' evaluations was after 4.5 of them."""
    at: list[float] = []

    class Compiling(Machine):
        def _pass(self, name: str) -> None:
            super()._pass(name)
            if name == "evaluate":
                self.now += 0.0 if at else 2.45
                at.append(self.now)

    machine = Compiling(ten_minutes(), step_s=0.0048)
    machine.intervals = {"evaluate": EvaluateConfig(), "save": CheckpointConfig()}
    machine.took_s = {"evaluate": 0.15, "save": 0.03}
    machine.run(first_s=7.0)
    waits = [after - before for before, after in zip(at, at[1:], strict=False)]
    assert max(waits) < 30 and len(waits) > 30
    assert 0.98 * 600 < machine.now < 600


def test_a_machine_that_slows_down_still_ends_in_time() -> None:
    class Slowing(Machine):
        def _pass(self, name: str) -> None:
            super()._pass(name)
            self.step_s = 0.04  # from the first save on

    machine = Slowing(ten_minutes(), step_s=0.02)
    machine.took_s["save"] = 1.0
    machine.run()
    assert 0.985 * 600 < machine.now < 605


def test_a_resumed_budget_counts_the_time_used() -> None:
    """The run has stopped at step 3,000 of 6,000; the time of 1,000 steps more was lost with the process."""
    machine = Machine(ten_minutes(), step_s=0.1, used_s=400.0)
    last = machine.run(start=3000, known=6000)
    assert last == pytest.approx(3000 + (600 * 0.998 - 400) / 0.1, abs=2)
    assert machine.now < 600


def test_a_budget_that_is_used_up_ends_at_once() -> None:
    machine = Machine(ten_minutes(), step_s=1.0, used_s=3600.0)
    assert machine.run(start=100, known=200) == 101
    assert Machine(ten_minutes(), step_s=1.0, used_s=3600.0).run() == 1


def test_a_step_longer_than_the_measure_still_works() -> None:
    machine = Machine(TrainConfig(max_minutes=1, steps=MILLION), step_s=30.0)
    assert machine.run() <= 4


def test_the_step_limit_holds_before_and_after_measuring() -> None:
    """Fast steps and a long budget: the limit comes before the measurement ends."""
    for limit in (3, 5, 20, 100):
        assert Machine(TrainConfig(max_minutes=60, steps=limit), step_s=0.1).run() == limit
    machine = Machine(ten_minutes(1000), step_s=0.1)
    assert machine.run() == 1000 and set(machine.totals) == {1000}


def test_a_rate_that_stays_up_falls_over_the_last_share() -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=10, decay_share=0.2)
    rates = [learning_rate(step, optim=optim, total=100) for step in range(101)]
    assert rates[5] == 0.5 and rates[10:80] == [1.0] * 70
    assert rates[90] == pytest.approx(0.5) and rates[100] == 0.0


def test_steps_of_another_shape_are_measured_anew() -> None:
    """Ten minutes: 300 steps of a second, then steps of two seconds, of which 150 fit in."""
    now, step, total = 0.0, 0, None
    budget = TimeBudget(TrainConfig(max_minutes=10), elapsed=lambda: now)
    for until, step_s, expected in ((300.0, 1.0, 600), (340.0, 2.0, 450)):
        while now < until:
            budget.follow((8, int(64 * step_s)))
            now, step = now + step_s, step + 1
            if budget.due(step):
                total = budget.total(step, total)
        assert total == pytest.approx(expected, rel=0.005)
