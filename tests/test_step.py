"""A step: micro-batches change nothing, repeats are bit-identical, totals are sums."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny import OPS, SPECIALS, Documents, Trainer, ragged_rows, tiny_config
from torch import Tensor, nn

from electra.batches.loader import Loader, Stream
from electra.batches.masking import MaskedPositions
from electra.batches.order import Cursor
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import CheckpointConfig, MaskingConfig, ObjectiveConfig, OptimConfig, TrainConfig
from electra.errors import ConfigError
from electra.objective.base import Evaluation, Objective, Outcome
from electra.objective.rtd import ReplacedTokenDetection
from electra.train.interrupt import Stop
from electra.train.loop import Position, train
from electra.train.meter import Line, Meter, Yardstick
from electra.train.parallel import World
from electra.train.schedule import learning_rate
from electra.train.step import Stepper

QUIET = OptimConfig(clip=1e9)  # with rate 0: the gradient stays in its buffer, the weights stay as they are


def gradient(rows: Tensor, *, micro: int, name: str, policy: str) -> tuple[Tensor, dict[str, float]]:
    masking = MaskingConfig(policy=policy)  # type: ignore[arg-type]
    objective = ObjectiveConfig(name=name)  # type: ignore[arg-type]
    trainer = Trainer(tiny_config(optim=QUIET, objective=objective, masking=masking), micro=micro)
    before = trainer.master.weights.clone()
    trainer.step(rows, 0.0)
    assert torch.equal(trainer.master.weights, before)
    return trainer.master.gradient.clone(), trainer.step.read()


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
@pytest.mark.parametrize("name", ["rtd", "mlm"])
def test_promise_07_micro_batches_do_not_change_the_maths(name: str, policy: str) -> None:
    """Ragged lengths and dropout included, since dropout is addressed by the sample."""
    rows = ragged_rows(8)
    assert len(set(unpack(rows).lengths_B.tolist())) > 4
    whole, totals = gradient(rows, micro=8, name=name, policy=policy)
    assert whole.norm() > 0.1
    for micro in (4, 1, 3):
        parts, sums = gradient(rows, micro=micro, name=name, policy=policy)
        assert (parts - whole).norm() <= 2e-6 * whole.norm()
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6 * float(whole.abs().max()))
        assert sums == pytest.approx(totals, rel=1e-6)


def test_promise_07_a_mean_of_means_would_be_noticed() -> None:
    rows = ragged_rows(8)
    whole, _ = gradient(rows, micro=8, name="rtd", policy="without_replacement")
    apart = [gradient(row[None], micro=1, name="rtd", policy="without_replacement")[0] for row in rows]
    assert (sum(apart) / 8 - whole).norm() > 0.01 * whole.norm()  # type: ignore[operator]


def test_promise_07_dropout_takes_part() -> None:
    one = Trainer(tiny_config(optim=QUIET), micro=8)
    two = Trainer(tiny_config(optim=QUIET, dropout=0.0), micro=8)
    for trainer in (one, two):
        trainer.step(ragged_rows(8), 0.0)
    assert (one.master.gradient - two.master.gradient).norm() > 0.05 * two.master.gradient.norm()


def run(steps: int, *, seed: int = 0, micro: int = 4) -> tuple[list[dict[str, float]], Tensor]:
    config = replace(tiny_config(), seed=seed)
    trainer = Trainer(config, micro=micro)
    lines = []
    for step in range(steps):
        trainer.step(ragged_rows(8, seed=step), learning_rate(step, optim=config.optim, total=steps))
        lines.append(trainer.step.read())
    state = torch.cat((trainer.master.weights, trainer.master.average, trainer.master.square))
    return lines, state


def test_promise_02_two_fresh_runs_are_bit_identical() -> None:
    (one, weights), (two, again) = run(5), run(5)
    assert [{k: v.hex() for k, v in line.items()} for line in one] == [
        {k: v.hex() for k, v in line.items()} for line in two
    ]
    assert torch.equal(weights, again)
    assert not torch.equal(weights, run(5, seed=1)[1])


def test_training_on_one_batch_learns_it() -> None:
    trainer = Trainer(tiny_config(dropout=0.0, optim=OptimConfig(lr=3e-3, warmup_steps=0)), micro=8)
    rows = ragged_rows(8)
    losses = []
    for _ in range(40):
        trainer.step(rows, 3e-3)
        losses.append(trainer.objective.means(trainer.step.read())["loss"])
    assert losses[0] > 35 and losses[-1] < 0.75 * losses[0]


def test_totals_are_sums_since_the_last_reading() -> None:
    trainer, alone = Trainer(tiny_config(optim=QUIET), micro=4), Trainer(tiny_config(optim=QUIET), micro=4)
    readings = []
    for seed in range(3):
        trainer.step(ragged_rows(8, seed=seed), 0.0)
        alone.step(ragged_rows(8, seed=seed), 0.0)
        readings.append(alone.step.read())
    totals = trainer.step.read()
    assert totals["steps"] == 3 and totals["skipped"] == 0
    for name in trainer.objective.stats:
        assert totals[name] == pytest.approx(sum(reading[name] for reading in readings), rel=1e-12)
    assert totals["tokens"] == sum(int(unpack(ragged_rows(8, seed=seed)).lengths_B.sum()) for seed in range(3))
    assert totals["grad_norm"] == readings[-1]["grad_norm"] == pytest.approx(float(alone.master.gradient.norm()))
    assert all(value == 0 for name, value in trainer.step.read().items() if name != "grad_norm")


def test_a_non_finite_step_is_counted_and_changes_nothing() -> None:
    trainer = Trainer(tiny_config(), micro=4)
    trainer.step(ragged_rows(8), 1e-3)
    good = trainer.step.read()
    with torch.no_grad():
        trainer.model.get_parameter("discriminator_head.score.bias").fill_(math.nan)
    before = [t.clone() for t in (trainer.master.weights, trainer.master.average, trainer.master.square)]
    trainer.step(ragged_rows(8, seed=1), 1e-3)
    trainer.step(ragged_rows(8, seed=2), 1e-3)
    after = (trainer.master.weights, trainer.master.average, trainer.master.square)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after, strict=True))
    totals = trainer.step.read()
    assert totals["steps"] == totals["skipped"] == 2
    assert all(totals[name] == 0 for name in trainer.objective.stats), "a skipped step adds nothing to the means"
    with torch.no_grad():
        trainer.model.get_parameter("discriminator_head.score.bias").fill_(0.0)
    trainer.step(ragged_rows(8, seed=1), 1e-3)
    totals = trainer.step.read()
    assert totals["skipped"] == 0 and math.isfinite(totals["rtd_sum"]) and good["skipped"] == 0


def test_the_meter_makes_a_line_of_the_totals() -> None:
    trainer = Trainer(tiny_config(), micro=8)
    meter = Meter(trainer.step, Yardstick(flops_per_token=1e6, peak_flops=1e12))
    for seed in range(2):
        trainer.step(ragged_rows(8, seed=seed), 1e-3)
    line, tokens = meter.read(lr=1e-3)
    assert tokens == sum(int(unpack(ragged_rows(8, seed=seed)).lengths_B.sum()) for seed in range(2))
    speed, steps, mfu = line["perf/tokens_per_s"], line["perf/steps_per_s"], line["perf/mfu"]
    assert speed and steps and mfu
    assert speed / steps == pytest.approx(tokens / 2) and mfu == pytest.approx(speed * 1e6 / 1e12)
    loss, mlm, rtd = (line[f"train/{name}"] for name in ("loss", "mlm_loss", "rtd_loss"))
    assert loss and mlm and rtd and loss == pytest.approx(mlm + 50 * rtd)
    assert line["optim/lr"] == 1e-3 and line["optim/skipped"] == 0
    assert 0.05 < (line["perf/memory_gib"] or 0) < 100
    with torch.no_grad():
        trainer.master.weights.fill_(math.nan)
    trainer.step(ragged_rows(8), 1e-3)
    line, tokens = Meter(trainer.step, Yardstick(flops_per_token=1e6, peak_flops=None)).read(lr=1e-3)
    assert line["perf/mfu"] is None and tokens == 0 and line["optim/skipped"] == 1
    assert math.isnan(line["train/loss"] or 0.0), "no step done: nothing to report"


def test_defect_a_time_budget_stops_at_the_step_limit() -> None:
    """Quick steps and an hour to spend: a run that passed its limit before measuring would never end."""
    config = tiny_config(
        train=TrainConfig(steps=7, max_minutes=60, batch_size=4, log_every=2),
        checkpoint=CheckpointConfig(every=3, seconds=0),
    )
    trainer = Trainer(config, micro=4)
    split = Documents([[list(range(5, 5 + size)) for size in (5, 9, 2, 14, 3)]] * 3)
    loader = Loader(Stream(split, config.data, SPECIALS, seed=0), Cursor(), batch_size=4, device=torch.device("cpu"))
    saved: list[int] = []
    lines: list[tuple[int, Line]] = []
    evaluated: list[int] = []
    try:
        end = train(
            Position(total_steps=None),
            loader,
            config=config,
            stepper=trainer.step,
            meter=Meter(trainer.step, Yardstick(flops_per_token=1.0, peak_flops=None)),
            world=World(),
            save=lambda position: saved.append(position.step),
            record=lambda position, line: lines.append((position.step, line)),
            evaluate=lambda position: evaluated.append(position.step),
            dump=lambda position: pytest.fail("nothing diverged"),
            stop=Stop(),
            elapsed=lambda: 0.0,
        )
    finally:
        loader.close()
    assert end.step == end.total_steps == 7
    assert saved == [3, 6, 7] and evaluated == [0, 7]
    assert [step for step, _ in lines] == [2, 3, 4, 6, 7]
    assert lines[0][1]["optim/lr"] == learning_rate(1, optim=config.optim, total=None), "the rate of the last step"


@dataclass(frozen=True)
class Mistaken:
    """A real objective, with one mistake of a beginner."""

    right: Objective
    stats: tuple[str, ...]
    more: int = 0
    """Sums that no name is for."""
    named: str = "loss"
    read: str = "tokens"

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.right.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.right.counts(batch, masked)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        loss, sums = self.right.loss(model, batch, masked, counts)
        return Outcome(loss, torch.cat((sums, sums.new_zeros(self.more))))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.right.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        return {self.named: sums["rtd_sum"] / max(1.0, sums[self.read])}


STATS = ReplacedTokenDetection.stats


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"stats": tuple("seen" if name == "tokens" else name for name in STATS), "read": "seen"}, "lack 'tokens'"),
        ({"named": "total"}, "its means lack 'loss'"),
        ({"read": "sequences"}, "its means read 'sequences', which its stats lack"),
        ({"more": 1}, r"its loss gives sums of shape \(8,\) for the 7 names of its stats"),
    ],
)
def test_an_objective_that_breaks_the_contract_is_named_in_a_line(change: dict[str, Any], message: str) -> None:
    """Each had ended in a traceback of the log line, or of the totals."""
    trainer = Trainer(tiny_config(), micro=8)
    objective = replace(Mistaken(trainer.objective, STATS), **change)
    wrong = pytest.raises(ConfigError, match=rf"^objective.name: Mistaken: .*{message}.* \(objective/base.py")
    with wrong if message else nullcontext():
        step = Stepper(
            trainer.model,
            trainer.master,
            trainer.update,
            objective,
            ops=OPS,
            world=World(),
            micro_batch=8,
            compiled=False,
            captured=False,
            separator=None,
        )
        step(ragged_rows(8), 0.0)
        assert step.read()["tokens"] > 0
