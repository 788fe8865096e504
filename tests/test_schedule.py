"""The learning rate of the official code, and time budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config.schema import OptimConfig, TrainConfig
from electra.train import schedule
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


def test_defect_the_first_update_has_rate_0() -> None:
    assert learning_rate(0, optim=OptimConfig(), total=MILLION) == 0.0


@given(
    step=st.integers(0, 2000), warmup=st.integers(0, 500), total=st.integers(1, 1500), decay=st.sampled_from([0, 700])
)
def test_warm_up_and_decay_multiply(step: int, warmup: int, total: int, decay: int) -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=warmup, decay_steps=decay)
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


class Clock:
    """Time that passes only when a test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    return clock


def run(
    budget: TimeBudget, clock: Clock, *, seconds_per_step: float, start: int = 0, first_s: float = 0.0
) -> tuple[int, int]:
    """Step as the loop does until the budget has become steps: the step at which it did, and the total."""
    step, total = start, None
    clock.now += first_s
    while total is None:
        clock.now += seconds_per_step
        step += 1
        if budget.ready(step):
            total = budget.total(step)
        assert step < start + 100_000
    return step, total


def test_a_time_budget_becomes_steps(clock: Clock) -> None:
    budget = TimeBudget(TrainConfig(max_minutes=10, steps=MILLION), elapsed_s=0.0)
    step, total = run(budget, clock, seconds_per_step=0.1, first_s=20.0)
    # 20 s of compiling, 5 steps of warming up, then 5 % of 600 s: 300 steps at 0.1 s.
    assert step == pytest.approx(305, abs=2)
    left_s = 600 * 0.97 - budget.elapsed_s
    assert total == pytest.approx(step + left_s / 0.1, abs=2)
    finish = 20.0 + total * 0.1
    assert 0.96 * 600 < finish < 600, "the run ends inside its budget"


def test_a_resumed_budget_counts_the_time_used(clock: Clock) -> None:
    budget = TimeBudget(TrainConfig(max_minutes=10, steps=MILLION), elapsed_s=300.0)
    assert budget.elapsed_s == pytest.approx(300.0)
    step, total = run(budget, clock, seconds_per_step=0.1, start=3000)
    assert 300.0 + (total - 3000) * 0.1 < 600
    assert total == pytest.approx(3000 + (600 * 0.97 - 300) / 0.1, abs=10)


def test_a_budget_that_is_used_up_ends_at_once(clock: Clock) -> None:
    budget = TimeBudget(TrainConfig(max_minutes=1, steps=MILLION), elapsed_s=3600.0)
    step, total = run(budget, clock, seconds_per_step=1.0)
    assert total == step + 1


def test_a_step_longer_than_the_measure_still_works(clock: Clock) -> None:
    budget = TimeBudget(TrainConfig(max_minutes=1, steps=MILLION), elapsed_s=0.0)
    step, total = run(budget, clock, seconds_per_step=30.0)
    assert total > 0 and step <= 7


def test_the_step_limit_holds_before_and_after_measuring(clock: Clock) -> None:
    """Fast steps and a long budget: the limit comes before the measurement ends."""
    for limit in (3, 5, 20, 100):
        budget = TimeBudget(TrainConfig(max_minutes=60, steps=limit), elapsed_s=0.0)
        assert run(budget, clock, seconds_per_step=0.1) == (limit, limit)
    budget = TimeBudget(TrainConfig(max_minutes=10, steps=1000), elapsed_s=0.0)
    step, total = run(budget, clock, seconds_per_step=0.1)
    assert step < total == 1000
