"""Two-stage training: the generator alone, then the discriminator with a frozen generator; exact resuming in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from ranks import Case, run_all
from safetensors.torch import load_file
from tiny import RESOURCES, SPECIALS, make_model, ragged_rows, tiny_config
from tiny_runs import losses, make_data, metric_lines, signalled, small_config, weights
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.order import Cursor
from electra.batches.sequences import unpack
from electra.checkpoint import store
from electra.config.load import load
from electra.config.schema import Config, GeneratorConfig, OptimConfig, TrainConfig
from electra.errors import ConfigError, Diverged, Resumable
from electra.fsio import read_json
from electra.interop.models import load_model
from electra.model.cost import parameters, stage_flops_per_token
from electra.model.electra import Electra
from electra.objective.base import Objective, Outcome
from electra.objective.registry import Resources, build_stages
from electra.ops.dispatch import select
from electra.pretrain import pretrain
from electra.train.loop import Position
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.schedule import learning_rate
from electra.train.stages import Stage, StageWeights, plan_stages, stage_until, stages_after
from electra.train.step import Stepper

FIRST, SECOND = 7, 8
OVERRIDES = [
    "train.algorithm=two-stage",
    f"train.steps={FIRST + SECOND}",
    f"train.generator_steps={FIRST}",
    "generator.width=1",
    "model.ffn=256",
    "optim.warmup_steps=3",
    "optim.lr=2e-3",
    "evaluate.every=4",
    "checkpoint.every=3",
    "checkpoint.keep=99",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def config() -> Config:
    return small_config(*OVERRIDES)


@pytest.fixture(scope="module")
def whole(data: Path, config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruptions."""
    return pretrain(config, data=data, out=tmp_path_factory.mktemp("whole") / "run")


def saved(run: Path, step: int) -> dict[str, Tensor]:
    return load_file(store.checkpoint_path(run, step) / "model.safetensors")


def averages(run: Path, step: int) -> set[str]:
    """The parts that the optimizer has averages of."""
    names = load_file(store.checkpoint_path(run, step) / "optimizer.safetensors")
    return {name.split(".")[1] for name in names}


def test_checkpoints_follow_each_stage_and_the_run_counts_on(whole: Path) -> None:
    steps = sorted(int(path.name[5:]) for path in (whole / "checkpoints").glob("step-*"))
    assert steps == [3, 6, FIRST, 9, 12, FIRST + SECOND], "as often as in any run, and at the end of each stage"
    for step in steps:
        state = read_json(store.checkpoint_path(whole, step) / "state.json")
        assert state["step"] == step and state["total_steps"] == FIRST + SECOND
    assert read_json(whole / "run.json")["ledger"]["tokens"] == (FIRST + SECOND) * 8 * 32


def test_metrics_are_continuous_and_each_stage_has_its_own_schedule(whole: Path, config: Config) -> None:
    lines = metric_lines(whole)
    train = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in train] == list(range(1, FIRST + SECOND + 1))
    tokens = [line["tokens"] for line in train]
    assert tokens == sorted(set(tokens)), "the data goes on where the stage before stopped"
    rates = [learning_rate(step, optim=config.optim, total=FIRST) for step in range(FIRST)]
    rates += [learning_rate(step, optim=config.optim, total=SECOND) for step in range(SECOND)]
    assert [line["optim/lr"] for line in train] == rates and rates[FIRST] == 0
    assert [("train/rtd_loss" in line, "train/mlm_accuracy" in line) for line in train] == (
        [(False, True)] * FIRST + [(True, False)] * SECOND
    )
    evals = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in evals] == [0, 4, FIRST, 8, 12, FIRST + SECOND]
    assert ["eval/rtd_auc" in line for line in evals] == [False, False, False, True, True, True]
    assert evals[2]["eval/mlm_loss"] < evals[0]["eval/mlm_loss"], "the generator has learned"
    assert len({line["eval/mlm_loss"] for line in evals[2:]}) == 1, "and stays as it is"
    assert evals[-1]["eval/rtd_loss"] < evals[3]["eval/rtd_loss"], "the discriminator learns"


def test_what_learns_when(whole: Path, config: Config) -> None:
    fresh = {name: p.detach() for name, p in make_model(config).named_parameters()}
    end, last = saved(whole, FIRST), saved(whole, FIRST + SECOND)
    assert fresh.keys() == end.keys() == last.keys(), "a checkpoint holds both networks in either stage"
    for name in fresh:
        generates = name.startswith("generator")
        assert torch.equal(fresh[name], end[name]) != generates, name
        assert torch.equal(end[name], last[name]) == generates, name
    for step in (3, 6, FIRST):
        assert averages(whole, step) == {"generator_embeddings", "generator", "generator_head"}
    for step in (9, FIRST + SECOND):
        assert averages(whole, step) == {"embeddings", "discriminator", "discriminator_head"}


def test_the_discriminator_starts_as_the_generator(tmp_path: Path, data: Path, config: Config) -> None:
    """The first step of a stage has rate 0: after it, the weights are still those it began with."""
    run = tmp_path / "run"
    tiny_runs.stop_at(FIRST + 1, config, data=data, out=run)
    begun = saved(run, FIRST + 1)
    for name, tensor in begun.items():
        part, _, rest = name.partition(".")
        if part in ("embeddings", "discriminator"):
            other = f"generator{'_embeddings' if part == 'embeddings' else ''}.{rest}"
            assert torch.equal(tensor, begun[other]), name
    head = dict(make_model(config).named_parameters())["discriminator_head.dense.weight"]
    assert torch.equal(begun["discriminator_head.dense.weight"], head), "the heads have nothing in common"


@pytest.mark.parametrize(
    ("tying", "starts", "copied"),
    [
        ("embeddings", True, {"embeddings", "discriminator"}),
        ("embeddings", False, {"embeddings"}),
        ("none", True, {"embeddings", "discriminator"}),
        ("none", False, set()),
        ("gdes", True, {"embeddings", "discriminator"}),
        ("gdes", False, set()),
    ],
)
def test_what_the_second_stage_begins_with(tying: Any, starts: bool, copied: set[str]) -> None:
    config = replace(
        tiny_config(generator=GeneratorConfig(width=1.0, tying=tying)),
        train=TrainConfig(algorithm="two-stage", steps=4, start_from_generator=starts),
    )
    config = replace(config, model=replace(config.model, heads=1, ffn=128, embedding=32))
    model = make_model(config)
    assert isinstance(model, Electra) and model.generator_embeddings is not model.embeddings
    assert sum(p.numel() for p in model.parameters()) == parameters(config).total
    before = {name: p.clone() for name, p in model.named_parameters()}
    plan_stages(config, RESOURCES)[1].begin(model)
    for name, value in model.named_parameters():
        part, _, rest = name.partition(".")
        other = {"embeddings": f"generator_embeddings.{rest}", "discriminator": f"generator.{rest}"}.get(part)
        if part not in copied or (tying == "gdes" and name == "embeddings.token.weight"):
            assert torch.equal(value, before[name]), name
        else:
            assert other is not None and torch.equal(value, before[other]), name
    if tying == "gdes":  # the discriminator reads the generator's table, and a difference of 0
        ids = torch.tensor([[2, 7, 9, 3]])
        read = model.embed(ids, torch.zeros_like(ids), None)
        table = model.generator_embeddings(ids, torch.zeros_like(ids), None)
        assert torch.allclose(read, table, atol=1e-5) or not starts


@pytest.mark.parametrize("stop", [1, FIRST - 1, FIRST, FIRST + 1, FIRST + SECOND - 1])
def test_promise_04_stopping_in_either_stage_and_resuming_is_bitwise(
    stop: int, tmp_path: Path, data: Path, config: Config, whole: Path
) -> None:
    out = tmp_path / "run"
    with signalled(stop), pytest.raises(Resumable, match=f"stopped by SIGTERM at step {stop}, saved; run the same"):
        pretrain(config, data=data, out=out)
    assert store.step_of(store.latest(out) or Path("step-0")) == stop
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole)
    assert metric_lines(out) == metric_lines(whole)


def test_promise_04_stopping_at_every_step(tmp_path: Path, data: Path, config: Config, whole: Path) -> None:
    out = tmp_path / "run"
    for reached in range(1, FIRST + SECOND):
        with signalled(1), pytest.raises(Resumable, match=f"at step {reached},"):
            pretrain(config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)
    before = tiny_runs.times(out)
    pretrain(config, data=data, out=out)
    assert tiny_runs.times(out) == before, "a finished run is left alone"


KILLED_AFTER = """
import os, signal
from electra.checkpoint import store
save = store.save

def deadly(*arguments, step, **more):
    saved = save(*arguments, step=step, **more)
    if step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    return saved

store.save = deadly
"""


def test_promise_04_kill_9_in_either_stage(tmp_path: Path, data: Path) -> None:
    """Killed after a checkpoint of the first stage, after its last one, and after one of the second: one run."""
    once, out = tmp_path / "once", tmp_path / "run"

    def case(name: str, run: Path, prelude: str = "") -> Case:
        return Case(name, 1, str(tmp_path / name), tiny_runs.command(data, run, *OVERRIDES), prelude=prelude)

    killed = [case(f"killed {step}", out, KILLED_AFTER.format(step=step)) for step in (3, FIRST, 9)]
    ended = run_all([case("untouched", once), *killed, case("again", out)])
    assert [[code for code, _ in ended[one]] for one in ended] == [[0], [-9], [-9], [-9], [0]], ended
    assert f"resuming at step {FIRST}" in ended["killed 9"][0][1] and "resuming at step 9" in ended["again"][0][1]
    assert weights(out) == weights(once)
    assert metric_lines(out) == metric_lines(once)


def test_half_of_the_run_is_the_generators(tmp_path: Path, data: Path) -> None:
    config = small_config(*OVERRIDES, "train.steps=5", "train.generator_steps=0", "optim.warmup_steps=1")
    assert config.train.stage_steps == (2, 3)
    run = pretrain(config, data=data, out=tmp_path / "run")
    train = [line for line in metric_lines(run) if line["kind"] == "train"]
    assert ["train/rtd_loss" in line for line in train] == [False, False, True, True, True]


def test_a_small_generator_and_a_fresh_discriminator(tmp_path: Path, data: Path) -> None:
    overrides = [*OVERRIDES, "generator.width=0.5", "train.start_from_generator=false", "train.micro_batch=4"]
    run = pretrain(small_config(*overrides), data=data, out=tmp_path / "run")
    last = saved(run, FIRST + SECOND)
    assert last["generator.layers.0.attention.out.weight"].shape == (32, 32)
    assert len(losses(run)) == FIRST + SECOND
    for part in ("discriminator", "generator"):
        assert load_model(run, part=part).head is not None  # type: ignore[arg-type]


def test_the_frozen_generator_is_not_trained_and_has_no_dropout() -> None:
    config = tiny_config(dropout=0.5, train=TrainConfig(algorithm="two-stage", steps=4, start_from_generator=False))
    model = make_model(config)
    assert isinstance(model, Electra)
    alone, frozen = build_stages(config, RESOURCES)
    batch = unpack(ragged_rows(6))
    for objective, learns in ((alone, True), (frozen, False)):
        masked = objective.choose_masked(batch)
        outcome = objective.loss(model, batch, masked, objective.counts(batch, masked))
        outcome.loss.backward()
        for name, parameter in model.named_parameters():
            assert (parameter.grad is not None) == (name.startswith("generator") == learns), name
        model.zero_grad(set_to_none=True)
        sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
        found = objective.evaluate(model, batch)
        still = float(found.nll_BM[found.used_BM].detach().sum())
        assert (sums["mlm_sum"] == pytest.approx(still, rel=1e-6)) != learns
        means = objective.means(sums)
        weighed = means["mlm_loss"] if learns else 50 * means["rtd_loss"]
        assert means["loss"] == pytest.approx(weighed) == pytest.approx(outcome.loss.item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 products computes them all the same
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_few_steps_lower_the_loss_of_each_stage(compute: torch.dtype) -> None:
    optim = OptimConfig(lr=3e-3, warmup_steps=0)
    config = replace(
        tiny_config(dropout=0.0, optim=optim, generator=GeneratorConfig(width=1.0)),
        train=TrainConfig(algorithm="two-stage", steps=80),
    )
    config = replace(config, model=replace(config.model, layers=1, heads=1, ffn=128))
    ops = select("auto", device=torch.device("cpu"), dtype=compute)
    model, rows = make_model(config, ops=ops, dtype=compute), ragged_rows(4)
    kept: dict[str, Tensor] = {}
    for number, stage in enumerate(plan_stages(config, Resources(SPECIALS, ops))):
        stage.begin(model)
        held = StageWeights(model, stage, compute=compute, device=torch.device("cpu"))
        step = Stepper(
            model,
            held.master,
            Update(held.master, optim, ops=ops),
            stage.objective,
            ops=ops,
            world=World(),
            micro_batch=4,
            compiled=False,
            captured=False,
            separator=None,
        )
        values = []
        for _ in range(20):
            step(rows, 6e-3)
            values.append(stage.objective.means(step.read())["loss"])
        assert values[-1] < 0.8 * values[0], (stage.title, values[0], values[-1])
        tensors = held.tensors()["model"]
        assert tensors.keys() == {name for name, _ in model.named_parameters()}
        assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
        if number:
            assert all(torch.equal(kept[name], tensors[name]) for name in tensors if name.startswith("generator"))
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        held.release()
        assert all(torch.equal(p, kept[name]) and p.dtype == torch.float32 for name, p in model.named_parameters())


@pytest.mark.parametrize("algorithm", ["two-stage", "adversarial"])
def test_every_stage_traces_as_one_graph(algorithm: Any) -> None:
    """A compiled step: no break, and the same losses and gradients."""
    train = TrainConfig(algorithm=algorithm, steps=4, start_from_generator=False)
    config = tiny_config(train=train, model=replace(tiny_config().model, layers=1))
    ops = select("auto", device=torch.device("cpu"), dtype=torch.float32, compiled=True)
    model, rows = make_model(config, ops=ops), ragged_rows(4)
    for stage in plan_stages(config, Resources(SPECIALS, ops)):
        masked = stage.objective.choose_masked(unpack(rows))
        counts = stage.objective.counts(unpack(rows), masked)

        def loss(
            rows: Tensor, masked: MaskedPositions, counts: Tensor, objective: Objective = stage.objective
        ) -> Outcome:
            return objective.loss(model, unpack(rows), masked, counts)

        torch.compiler.reset()
        found = []
        for run in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")):
            outcome = run(rows, masked, counts)
            outcome.loss.backward()
            found.append((outcome.sums, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
            model.zero_grad(set_to_none=True)
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stop", [3, FIRST, FIRST + 2])
def test_promise_04_resuming_on_a_gpu_is_bitwise(stop: int, tmp_path: Path, data: Path) -> None:
    config = small_config(*OVERRIDES, "train.device=cuda", "train.precision=bf16", "train.deterministic=true")
    whole, out = pretrain(config, data=data, out=tmp_path / "whole"), tmp_path / "run"
    tiny_runs.stop_at(stop, config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)


def test_positions_inside_and_outside_a_stage() -> None:
    config = replace(tiny_config(), train=TrainConfig(algorithm="two-stage", steps=10, generator_steps=3))
    first, second = stages = plan_stages(config, RESOURCES)
    at = Position(step=5, cursor=Cursor(1, 2), tokens=9.0, elapsed_s=1.0, total_steps=10)
    assert second.inside(at) == second.outside(at) == at and not second.done(at)
    early = replace(at, step=2)
    assert first.inside(early) == replace(early, total_steps=3) and first.outside(first.inside(early)) == early
    assert second.done(replace(at, step=10)) and first.done(replace(at, step=3)) and not first.done(at)
    assert [len(stages_after(stages, step)) for step in (0, 2, 3, 9)] == [2, 2, 1, 1]
    assert [stage_until(stages, step) is second for step in (0, 1, 3, 4, 10)] == [False, False, False, True, True]
    joint = plan_stages(tiny_config(), RESOURCES)
    open_end = Position(step=4)
    assert len(joint) == 1 and joint[0].inside(open_end) == joint[0].outside(open_end) == open_end
    assert not joint[0].done(open_end)


def test_each_stage_costs_what_it_computes() -> None:
    config = replace(tiny_config(), train=TrainConfig(algorithm="two-stage", steps=10, generator_steps=3))
    stages: tuple[Stage, ...] = plan_stages(config, RESOURCES)
    alone, frozen = stage_flops_per_token(config)
    assert [stage.flops_per_token for stage in stages] == [alone, frozen]
    joint = plan_stages(tiny_config(), RESOURCES)[0].flops_per_token
    assert frozen < joint and joint - frozen == pytest.approx(2 * alone / 3), "a frozen generator has no backward"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective.name=mlm"], "train.algorithm: two-stage trains a separate generator"),
        (["generator.kind=unigram"], "train.algorithm: two-stage trains a separate generator"),
        (["generator.tying=all"], "train.algorithm: two-stage trains a separate generator"),
        (["objective.name=rtd-15"], "train.algorithm: two-stage trains a separate generator"),
        (["train.max_minutes=5"], "train.max_minutes: two stages have a number of steps each"),
        (["model.dropout_share=0.5"], "model.dropout_share: is not for two-stage"),
        (["train.generator_steps=15"], "train.generator_steps: 15 of train.steps 15 leaves one of the two stages"),
        (["train.generator_steps=0", "train.steps=1"], "train.generator_steps: 0 of train.steps 1 leaves one"),
        (["generator.width=0.5"], "train.start_from_generator: .* of its own size only .*generator.width=1"),
        (["generator.depth=0.5"], "train.start_from_generator: .* of its own size only"),
        (["model.ffn=128"], "train.start_from_generator: .* of its own size only .*blocks of 4 widths"),
        (["model.heads=2"], "train.start_from_generator: .* of its own size only .*heads of 64 units"),
        (["generator.tying=none"], "train.start_from_generator: .* of its own size only .*embeddings of its width"),
        (["generator.kind=two-tower"], "train.start_from_generator: .* cannot start from generator.kind two-tower"),
        (["objective.mlm_weight=0"], "objective.mlm_weight: 0 leaves one of the two stages nothing to learn"),
        (["objective.rtd_weight=0"], "objective.rtd_weight: 0 leaves one of the two stages nothing to learn"),
        (["optim.warmup_steps=7"], "optim.warmup_steps: 7 steps of warm-up do not fit into a stage of 7"),
        (["optim.decay_steps=7"], "optim.decay_steps: .* 0 from step 7 to a stage of 8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_combinations_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("tiny", overrides=tiny_runs.arguments(*OVERRIDES, *overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["generator.kind=two-tower"], "adversarial needs generator.kind transformer"),
        (["generator.tying=all", "generator.width=1"], "adversarial trains a separate generator"),
        (["objective.name=replace-mlm"], "adversarial trains a separate generator"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_combinations_of_adversarial_training(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"train.algorithm: {message}"):
        load("tiny", overrides=tiny_runs.arguments("train.algorithm=adversarial", *overrides))


def test_an_adversarial_run_resumes_and_logs_its_generator(tmp_path: Path, data: Path) -> None:
    config = small_config("train.algorithm=adversarial", "train.steps=6")
    once = pretrain(config, data=data, out=tmp_path / "once")
    tiny_runs.stop_at(3, config, data=data, out=tmp_path / "twice")
    twice = pretrain(config, data=data, out=tmp_path / "twice")
    assert weights(once) == weights(twice) and metric_lines(once) == metric_lines(twice)
    last = [line for line in metric_lines(once) if line["kind"] == "train"][-1]
    assert {f"train/{name}" for name in ("mlm_loss", "reward", "baseline_loss", "entropy", "rtd_loss")} <= last.keys()
    assert load_model(once, part="generator").head is not None


def test_a_generator_that_learns_may_raise_the_loss(tmp_path: Path, data: Path) -> None:
    """Where it asks harder questions by learning, a rise is no divergence; the same limit ends a joint run."""
    overrides = ["guard.max_rise=1.0001", "optim.lr=0.05", "optim.warmup_steps=1", "train.steps=8"]
    with pytest.raises(Diverged, match="the smoothed loss rose"):
        pretrain(small_config(*overrides), data=data, out=tmp_path / "joint")
    for name, change in (("adversarial", "train.algorithm=adversarial"), ("chosen", "objective.name=rtd-15")):
        values = losses(pretrain(small_config(*overrides, change), data=data, out=tmp_path / name))
        assert len(values) == 8 and max(values[1:]) > values[0]
