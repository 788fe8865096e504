"""The paper's experiments as data: every configuration loads, differs as it says, and gets an equal budget."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config.load import diff, load
from electra.errors import ConfigError
from electra.model.cost import train_flops
from electra.reproduce.experiments import EXPERIMENTS, experiment
from electra.reproduce.plan import left_out, plan, seeds_of, steps_for
from electra.reproduce.scale import SCALES, changed_scale, changes, scale_named

NAMES = (
    "weight-tying generator-size training-algorithms small-models large-models efficiency model-size "
    "negative-results lambda learning-rate mask-rate"
).split()
# What may follow from a budget; everything else must be the variant's own doing.
PACED = {f"{part}.{key}" for part in ("evaluate", "checkpoint") for key in ("every", "seconds")}
BUDGETED = {"train.steps", "optim.warmup_steps", "train.log_every", *PACED}
BUDGETED |= {"checkpoint.keep"}


@cache
def everything(name: str, scale: str, **given: object):  # type: ignore[no-untyped-def]
    return plan(EXPERIMENTS[name], replace(SCALES[scale], fits=0), **given)  # type: ignore[arg-type]


def test_the_experiments_are_those_of_the_paper() -> None:
    assert sorted(EXPERIMENTS) == sorted(NAMES)
    assert all(one.question.endswith("?") and "\n" not in one.question for one in EXPERIMENTS.values())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_loads_and_differs_in_what_it_claims(name: str, scale: str) -> None:
    planned = everything(name, scale)
    assert len({one.name for one in planned}) == len({one.variant.title for one in planned}) == len(planned)
    for one in planned:
        for text in one.variant.overrides:
            key, _, value = text.partition("=")
            there = one.config
            for part in key.split("."):
                there = getattr(there, part)
            assert str(there).lower() == value or float(there) == float(value)  # type: ignore[arg-type]
    for one in planned:
        for other in planned:
            changed = {key for key, _, _ in diff(one.config, other.config)} - BUDGETED
            named = {text.partition("=")[0] for text in (*one.variant.overrides, *other.variant.overrides)}
            assert changed <= named
            shared = one.variant.overrides == other.variant.overrides
            assert one.name == other.name or changed or (shared and one.variant.share != other.variant.share)


@pytest.mark.parametrize("vocab", [200])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_equal_flops_are_equal_within_a_step(name: str, scale: str, vocab: int) -> None:
    planned = {one.name: one for one in everything(name, scale, vocab_size=vocab, budget="flops")}
    first = next(iter(planned))
    for one in planned.values():
        reference = planned[one.variant.like or first]
        target = train_flops(reference.config).paper / reference.variant.share * one.variant.share
        found = train_flops(one.config).paper
        per_step = found / one.config.train.steps
        stages = 2 if one.config.train.algorithm == "two-stage" else 1  # the two halves round on their own
        assert abs(found - target) <= stages * per_step
        assert one.config.model.vocab_size == vocab


@pytest.mark.parametrize("name", NAMES)
def test_equal_steps_and_equal_minutes(name: str) -> None:
    planned = everything(name, "gpu-1h", budget="steps")
    whole = [one.config.train.steps / one.variant.share for one in planned]
    assert max(whole) - min(whole) <= 1
    if EXPERIMENTS[name].checkpoints != (1.0,):
        with pytest.raises(ConfigError, match="minutes do not say which"):
            everything(name, "gpu-1h", budget="minutes")
    else:
        minutes = {
            one.config.train.max_minutes / one.variant.share for one in everything(name, "cpu", budget="minutes")
        }
        assert minutes == {SCALES["cpu"].minutes}


def test_the_paper_s_steps_come_out_of_its_budget() -> None:
    """Table 6 says 1M and 464K steps for the BERTs that cost what 766K and 400K steps of ELECTRA cost."""
    base = {one.name: one.config.train.steps for one in plan(experiment("efficiency"), scale_named("paper"))}
    large = {one.name: one.config.train.steps for one in plan(experiment("large-models"), scale_named("paper"))}
    assert base["electra"] == 766_000 and base["bert"] == pytest.approx(1_000_000, rel=2e-3)
    assert large["electra-400k"] == 400_000 and large["electra-1.75m"] == 1_750_000
    assert large["bert"] == pytest.approx(464_000, rel=2e-3)
    assert train_flops(plan(experiment("large-models"), scale_named("paper"))[0].config).paper == pytest.approx(
        7.1e20, rel=0.01
    )


def test_configurations_at_the_paper_s_scale_are_the_presets_with_the_paper_s_rows() -> None:
    electra, bert = plan(experiment("small-models"), scale_named("paper"))
    assert {key for key, _, _ in diff(electra.config, load("small"))} <= BUDGETED | {"data.layout"}
    assert {key for key, _, _ in diff(bert.config, load("bert-small"))} <= BUDGETED | {"data.layout", "preset"}


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_lays_rows_out_as_the_paper_does(name: str) -> None:
    for one in everything(name, "cpu"):
        assert (one.config.data.layout, one.config.data.single_segment, one.config.data.short) == (
            "paper-official",
            0.1,
            0.05,
        )
    changed = everything(name, "cpu", overrides=("data.layout=sentences",))
    assert {one.config.data.layout for one in changed} == {"sentences"}


def test_checkpoints_to_score_are_saved() -> None:
    for name in ("training-algorithms", "small-models"):
        for scale in SCALES:
            for one in everything(name, scale):
                steps, every = one.config.train.steps, one.config.checkpoint.every
                begun = 0.5 if one.config.train.algorithm == "two-stage" else 0.0
                tokens = steps * one.config.train.batch_size * one.config.data.length
                begun = max(begun, SCALES[scale].scored_from / tokens)
                assert [point.share for point in one.points] == [s for s in EXPERIMENTS[name].checkpoints if s > begun]
                for point in one.points[:-1]:
                    assert point.step % every == 0 and 0 < point.step < steps
                    assert abs(point.step / steps - point.share) < 0.05
                assert one.points[-1].step == 0  # the last one
                assert one.config.checkpoint.keep * every >= steps  # none of them is removed


def test_an_hour_s_scale_scores_no_checkpoint_below_200_million_tokens() -> None:
    size = changed_scale(scale_named("gpu-1h"), tokens=1_024_000_000)
    for one in plan(experiment("small-models"), size):
        assert [point.share for point in one.points] == [0.25, 0.5, 1.0]


@given(budget=st.floats(1, 1e6), per_step=st.floats(0.1, 100))
def test_the_nearest_number_of_steps(budget: float, per_step: float) -> None:
    steps = steps_for(budget, cost=lambda n: n * per_step)
    best = min(range(max(1, steps - 2), steps + 3), key=lambda n: abs(n * per_step - budget))
    assert abs(steps * per_step - budget) == pytest.approx(abs(best * per_step - budget))


def test_choices_and_reports_have_seeds_of_their_own() -> None:
    for one in EXPERIMENTS.values():
        seeds = seeds_of(one, SCALES["gpu-1h"])
        assert seeds == ((0, 1, 2, 3, 4) if one.choice else (10, 11, 12, 13, 14))
    assert {one.name for one in EXPERIMENTS.values() if one.choice} == {"lambda", "learning-rate", "mask-rate"}


def test_gpu_scales_train_on_at_least_200_million_tokens() -> None:
    for scale in ("gpu-10min", "gpu-1h"):
        for name in EXPERIMENTS:
            tokens = {one.name: train_flops(one.config).tokens for one in everything(name, scale)}
            assert min(tokens.values()) >= 200e6, name
        assert SCALES[scale].fits >= 5 and SCALES[scale].seeds >= 3


def test_the_dearest_configuration_gets_the_scale_s_tokens_and_no_more_than_that() -> None:
    planned = plan(experiment("efficiency"), SCALES["gpu-10min"])
    tokens = {one.name: one.config.train.steps * 128 * 128 for one in planned}
    assert min(tokens, key=lambda name: tokens[name]) == "all-tokens-mlm"
    assert tokens["all-tokens-mlm"] == pytest.approx(SCALES["gpu-10min"].tokens, rel=1e-3)


def test_more_configurations_than_fit_are_left_out_and_named() -> None:
    chosen = replace(SCALES["gpu-10min"], fits=3)
    assert [one.name for one in plan(experiment("lambda"), chosen)] == ["lambda-50", "lambda-1", "lambda-10"]
    assert left_out(experiment("lambda"), chosen) == ["lambda-100", "lambda-20"]
    assert [one.name for one in plan(experiment("lambda"), chosen, only=["lambda-20"])] == ["lambda-20"]


def test_what_is_given_for_all_yields_to_the_variant() -> None:
    given = ["masking.policy=official", "objective.name=rtd"]
    planned = plan(experiment("efficiency"), SCALES["cpu-smoke"], overrides=given)
    assert {one.config.masking.policy for one in planned} == {"official"}
    assert {one.config.objective.name for one in planned} == {"rtd", "rtd-15", "mlm", "replace-mlm", "all-tokens-mlm"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: experiment("efficency"), "did you mean 'efficiency'"),
        (lambda: scale_named("gpu"), "is not a scale"),
        (lambda: plan(experiment("lambda"), SCALES["cpu"], only=["lambda-5"]), "not a configuration"),
        (lambda: plan(experiment("lambda"), SCALES["cpu"], overrides=["train.steps=5"]), "budget of the experiment"),
        (lambda: plan(experiment("lambda"), SCALES["paper"], budget="minutes"), "has no minutes"),
        (lambda: changed_scale(SCALES["cpu"], seeds=9), "more than the 5"),
    ],
)
def test_impossible_requests_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        call()


def test_fewer_tokens_than_a_batch_are_one_step() -> None:
    scale = changed_scale(SCALES["cpu"], tokens=1)
    assert {one.config.train.steps for one in plan(experiment("lambda"), scale)} == {1}


def test_changes_to_a_scale_can_be_given_again() -> None:
    assert changes(SCALES["cpu"]) == []
    changed = changed_scale(SCALES["cpu"], tokens=5, seeds=2, tasks=["rte", "cola"], rows=70)
    assert changes(changed) == ["--tokens 5", "--seeds 2", "--tasks rte,cola", "--rows 70"]
    assert changed.finetune == ("length=64", "max_train_rows=70")
    assert changed_scale(SCALES["paper"], rows=9).finetune == ("max_train_rows=9",)
