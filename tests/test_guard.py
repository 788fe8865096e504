"""Runs that no longer learn are named; healthy ones are left alone."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest

from electra.config.load import load
from electra.config.schema import GuardConfig
from electra.errors import Diverged
from electra.metrics.rtd import entropy
from electra.train.guard import Guard, check_held_out, discriminator_warning
from electra.train.meter import Line


def line(loss: float, *, skipped: float = 0.0) -> Line:
    return {"train/loss": loss, "optim/skipped": skipped}


def check(guard: Guard, losses: list[float]) -> None:
    for number, loss in enumerate(losses, start=1):
        guard.check(step=100 * number, line=line(loss))


def test_a_healthy_run_passes() -> None:
    """Totals of the published small run, the bump at 10k steps included, and some noise."""
    curve = [45.0, 28.0, 24.2, 22.9, 18.8, 17.2, 18.8, 16.3, 15.6, 14.8, 13.9, 13.1, 12.1, 11.6, 11.2]
    check(Guard(GuardConfig()), curve)
    check(Guard(GuardConfig()), [loss * factor for loss in curve for factor in (1.0, 1.15, 0.9)])


def test_one_bad_line_is_not_a_divergence() -> None:
    check(Guard(GuardConfig()), [20.0, 15.0, 12.0, 40.0, 12.0, 11.0])


def test_a_rising_loss_is_a_divergence() -> None:
    guard = Guard(GuardConfig(max_rise=2.0))
    check(guard, [20.0, 15.0, 12.0, 12.0])
    with pytest.raises(Diverged, match=r"step \d+: the smoothed loss rose to .* over 2 times its best .*optim\.lr"):
        check(guard, [200.0, 200.0])
    # By hand: 20, 19, 17.6, 16.48 is the best; then .8 * 16.48 + .2 * 98 = 32.784 is still below 2 * 16.48 = 32.96,
    # and .8 * 32.784 + .2 * 35 = 33.2272 is not.
    guard = Guard(GuardConfig(max_rise=2.0))
    check(guard, [20.0, 15.0, 12.0, 12.0, 98.0])
    with pytest.raises(Diverged, match=r"step 600: the smoothed loss rose to 33\.23, over 2 times its best 16\.48"):
        guard.check(step=600, line=line(35.0))


def test_a_loss_with_another_part_has_a_best_of_its_own() -> None:
    guard = Guard(GuardConfig(max_rise=2.0))
    check(guard, [2.0] * 5)
    for number in range(6, 36):  # 5 is over twice the best so far
        guard.check(step=100 * number, line=line(5.0) | {"train/overlap_loss": 0.6})
    with pytest.raises(Diverged, match=r"step 3600: the smoothed loss rose to 16\.00, over 2 times its best 5\.00"):
        guard.check(step=3600, line=line(60.0) | {"train/overlap_loss": 0.6})


def test_the_allowed_rise_is_configurable() -> None:
    check(Guard(GuardConfig(max_rise=100.0)), [10.0, 500.0, 500.0])
    with pytest.raises(Diverged):
        check(Guard(GuardConfig(max_rise=1.01)), [10.0, 11.0])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_divergence(loss: float) -> None:
    with pytest.raises(Diverged, match=f"step 100: the loss is {loss}"):
        check(Guard(GuardConfig()), [loss])


def test_many_skipped_steps_are_a_divergence() -> None:
    guard = Guard(GuardConfig(max_skipped=5))
    for _ in range(10):
        guard.check(step=1, line=line(20.0, skipped=4))
    with pytest.raises(Diverged, match=r"step 300: 5 steps had a non-finite gradient.*train\.precision=fp32"):
        guard.check(step=300, line=line(20.0, skipped=5))


def test_defect_a_run_stuck_at_nan_ends_also_with_short_log_intervals() -> None:
    """With a log line every 10 steps no line ever holds 50 skipped steps."""
    guard = Guard(GuardConfig(max_skipped=50))
    guard.check(step=10, line=line(20.0))
    for step in (20, 30, 40, 50):
        guard.check(step=step, line=line(math.nan, skipped=10))
    with pytest.raises(Diverged, match="step 60: 50 steps"):
        guard.check(step=60, line=line(math.nan, skipped=10))
    guard = Guard(GuardConfig(max_skipped=50))
    for _ in range(10):  # a good step in between starts the count anew
        guard.check(step=1, line=line(math.nan, skipped=10))
        guard.check(step=2, line=line(math.nan, skipped=10))
        guard.check(step=3, line=line(20.0, skipped=9))


def test_a_line_with_some_skipped_steps_still_counts_for_divergence() -> None:
    guard = Guard(GuardConfig())
    check(guard, [10.0, 10.0])
    with pytest.raises(Diverged, match="rose"):
        for step in range(10):
            guard.check(step=step, line=line(50.0, skipped=1))


def test_entropy() -> None:
    assert entropy(0.138) == pytest.approx(0.401, abs=0.001)
    assert entropy(0.09) == pytest.approx(0.3025, abs=0.001)
    assert entropy(0.5) == pytest.approx(math.log(2))
    assert entropy(0.0) == entropy(1.0) == 0.0


def warning(rtd_loss: float, rate: float, auc: float, *, objective: str = "rtd") -> str:
    figures = {"rtd_loss": rtd_loss, "replaced_rate": rate, "rtd_auc": auc}
    return discriminator_warning(figures, objective=objective)


@pytest.mark.parametrize("rate", [0.138, 0.09, 0.06])
def test_a_discriminator_at_the_base_rate_is_named(rate: float) -> None:
    named = warning(entropy(rate), rate, 0.5)
    assert named.startswith("dead discriminator") and f"{entropy(rate):.3f}" in named and f"{rate:.1%}" in named
    assert warning(1.04 * entropy(rate), rate, 0.52).startswith("dead discriminator")
    assert "generator" not in named, "which may have no width"


@pytest.mark.parametrize(("rtd_loss", "auc"), [(142.672, 0.5), (142.672, 0.7), (math.inf, 0.5), (0.45, 0.5)])
def test_a_discriminator_above_the_base_rate_is_not_called_at_it(rtd_loss: float, auc: float) -> None:
    named = warning(rtd_loss, 0.138, auc)
    assert "worse than knowing nothing" in named and "diverges: lower optim.lr" in named
    assert "dead" not in named and "same probability" not in named


@pytest.mark.parametrize(
    ("rtd_loss", "replaced_rate", "auc"),
    [(0.238, 0.12, 0.856), (0.159, 0.09, 0.936), (0.359, 0.138, 0.68), (0.39, 0.138, 0.54), (0.42, 0.138, 0.7)],
    ids=["20k", "1M", "5k", "below the floor", "it tells them apart"],
)
def test_a_healthy_discriminator_is_not_named(rtd_loss: float, replaced_rate: float, auc: float) -> None:
    assert warning(rtd_loss, replaced_rate, auc) == ""


def test_nothing_replaced_says_nothing_about_the_discriminator() -> None:
    assert warning(0.01, 0.0, math.nan) == warning(0.01, 1.0, math.nan) == ""
    assert discriminator_warning({"mlm_loss": 7.0}, objective="mlm") == ""


def test_rtd_15_is_not_measured_by_tokens_that_it_never_scores() -> None:
    assert warning(5.855, 0.138, 0.5, objective="rtd-15") == ""


@pytest.mark.parametrize(
    ("overrides", "mlm_loss", "diverged"),
    [
        ((), 1_528_590.0, True),
        ((), 21.0, True),
        ((), 20.0, False),
        (("objective.mlm_weight=0",), 1e6, False),
        (("train.algorithm=adversarial",), 1e6, False),
        (("model.init_std=1",), 21.0, False),
    ],
)
def test_a_run_that_ends_far_worse_than_guessing_is_diverged(
    overrides: tuple[str, ...], mlm_loss: float, diverged: bool
) -> None:
    """ln 30,522 is 10.33. Where nothing trains the generator's loss, or its first weights are huge, it may be high."""
    config = load("small", overrides=overrides)
    refused = pytest.raises(
        Diverged, match=r"step 20: .* mlm_loss .* guessing .* 30,522 tokens .* 10\.3 \(lower optim\.lr"
    )
    with refused if diverged else nullcontext():
        check_held_out({"mlm_loss": mlm_loss}, step=20, config=config)


@pytest.mark.parametrize(
    ("lines", "diverged"),
    [
        ([(2.0, 0.0), (math.nan, 1.0)], False),
        ([(2.0, 0.0), (math.nan, 1.0), (math.nan, 1.0)], True),
        ([(2.0, 0.0), (math.nan, 7.0), (2.0, 3.0)], False),
        ([(math.nan, 1.0)], True),
        ([(2.0, 0.0)], False),
    ],
)
def test_promise_12_a_run_must_not_end_in_bad_steps(lines: list[tuple[float, float]], diverged: bool) -> None:
    guard = Guard(GuardConfig())
    for step, (loss, skipped) in enumerate(lines, 1):
        guard.check(step=step, line={"train/loss": loss, "optim/skipped": skipped})
    with pytest.raises(Diverged, match="the run ends with") if diverged else nullcontext():
        guard.finish(step=len(lines))
