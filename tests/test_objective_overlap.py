"""Replaced token detection that also tells how many of their tokens two segments share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny import CLS, MASK, PAD, SEP, VOCAB, Trainer, make_model, ragged_rows, tiny_config
from tiny import RESOURCES as PLAIN
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights

from electra.batches.copies import with_copies
from electra.batches.loader import Batch
from electra.batches.sequences import unpack
from electra.batches.source import Source
from electra.config.schema import DataConfig, MaskingConfig, ObjectiveConfig, TrainConfig
from electra.config.validate import validate
from electra.errors import ConfigError
from electra.objective.overlap import Overlap, information, shared_tokens
from electra.objective.registry import build_objective
from electra.pretrain import pretrain

RESOURCES = PLAIN._replace(frequencies=lambda: torch.arange(VOCAB))
SPECIAL = (CLS, SEP, MASK)
OBJECTIVES = {
    "alone": ObjectiveConfig(overlap_weight=0.7),
    "beside the original tokens": ObjectiveConfig(overlap_weight=0.7, correction_weight=1.0),
    "beside masked language modelling": ObjectiveConfig(name="mlm", overlap_weight=0.7),
}


def copied(count: int, seed: int = 0) -> torch.Tensor:
    rows = ragged_rows(count, seed=seed)
    rows = torch.from_numpy(with_copies(rows.numpy(), share=0.7, specials=RESOURCES.specials))
    rows[0, -2] = rows[0, -3]  # a single segment
    return rows


def test_the_share_of_tokens_is_that_of_a_computation_by_hand() -> None:
    rows = [
        ([CLS, 10, 11, 12, SEP, 11, 13, SEP, PAD], 5),
        ([CLS, 10, 11, SEP, 11, 10, 10, SEP, PAD], 4),
        ([CLS, 10, 10, SEP, 11, 12, SEP, PAD, PAD], 4),
        ([CLS, 10, 11, 12, SEP, PAD, PAD, PAD, PAD], 5),
    ]
    packed = [[*ids, len([one for one in ids if one != PAD]), a, 1] for ids, a in rows]
    weights_V = torch.zeros(VOCAB)
    weights_V[10:14] = torch.tensor([1.0, 2.0, 4.0, 8.0])
    found = shared_tokens(unpack(torch.tensor(packed, dtype=torch.int32)), weights_V, SPECIAL)
    assert found[:, 0].tolist() == pytest.approx([2 / 7, 1, 0, 0])
    assert found[:, 1].tolist() == pytest.approx([2 / 10, 1, 0, 0])
    assert information(torch.tensor([0, 2, 4])).tolist() == pytest.approx([math.log(9), math.log(3), math.log(9 / 5)])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_the_other_ones_and_the_weighted_cross_entropy(name: str) -> None:
    config = tiny_config(dropout=0.0, objective=OBJECTIVES[name])
    objective, model, batch = build_objective(config, RESOURCES), make_model(config), unpack(copied(9))
    assert isinstance(objective, Overlap)
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    got, inner = objective.loss(model, batch, masked, counts), objective.objective
    read, without = inner.outcome(model, batch, masked, counts)
    pairs = batch.segments_BL.amax(1) == 1
    assert 0 < pairs.sum() < len(pairs) and counts[-1] == pairs.sum()
    logits = read.hidden_BLD[pairs][:, 0].double() @ model.overlap_head.weight.T.double()
    logits = logits + model.overlap_head.bias.double()
    wanted_B = shared_tokens(batch._replace(ids_BL=read.ids_BL), objective.information_V, SPECIAL)[pairs].double()
    wanted = F.binary_cross_entropy(logits.sigmoid(), wanted_B)
    assert (got.loss - without.loss).item() == pytest.approx(0.7 * wanted.item(), rel=1e-4)
    means = objective.means(dict(zip(objective.stats, got.sums.tolist(), strict=True)))
    assert means["overlap_loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert means["overlap_error"] == pytest.approx((logits.sigmoid() - wanted_B).abs().mean().item(), rel=1e-5)
    assert means["loss"] == pytest.approx(got.loss.item(), rel=1e-5)
    got.loss.backward()
    assert model.overlap_head.weight.grad is not None and model.overlap_head.weight.grad.abs().sum() > 0


def test_training_lowers_the_error() -> None:
    config = tiny_config(dropout=0.0, objective=ObjectiveConfig(overlap_weight=5.0), masking=MaskingConfig(rate=0.1))
    trainer = Trainer(config, micro=16, frequencies=RESOURCES.frequencies)
    errors = []
    for _ in range(80):
        trainer.step(copied(16), 3e-3)
        errors.append(trainer.objective.means(trainer.step.read())["overlap_error"])
    assert errors[-1] < 0.5 * errors[0]


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    config = small_config("objective.overlap_weight=2", "objective.correction_weight=1", "data.copies=0.3")
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    stop_at(5, config, data=data, out=tmp_path / "parts")
    parts = pretrain(config, data=data, out=tmp_path / "parts")
    assert weights(whole) == weights(parts)
    assert any("train/overlap_error" in line for line in metric_lines(whole))


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("objective.overlap_weight", {"objective": ObjectiveConfig(name="electric", overlap_weight=1.0)}),
        ("objective.overlap_weight", {"objective": ObjectiveConfig(contrastive_weight=1.0, overlap_weight=1.0)}),
        (
            "objective.overlap_weight",
            {"objective": ObjectiveConfig(overlap_weight=1.0), "train": TrainConfig(algorithm="adversarial")},
        ),
        (
            "objective.overlap_weight",
            {"objective": ObjectiveConfig(overlap_weight=1.0), "data": DataConfig(length=24, layout="packed")},
        ),
        ("data.copies", {"data": DataConfig(length=24, layout="packed", copies=0.1)}),
    ],
)
def test_what_has_no_two_segments_refuses_it(key: str, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=key):
        validate(tiny_config(**wrong))


def test_the_loss_begins_with_the_copies() -> None:
    """Whether rows have copies is a number on the device, so that a captured step follows it."""
    weights, rows, copies = ObjectiveConfig(overlap_weight=3.0), copied(9), torch.zeros(())
    config = tiny_config(dropout=0.0, objective=weights, data=DataConfig(length=24, copies=0.5, copies_share=0.2))
    objective = build_objective(config, RESOURCES._replace(copies=copies))
    model, batch = make_model(config), unpack(rows)
    assert isinstance(objective, Overlap)
    masked = objective.choose_masked(batch)
    for there in (False, True, False):
        copies.fill_(float(there))
        counts = objective.counts(batch, masked)
        outcome = objective.loss(model, batch, masked, counts)
        without = objective.objective.outcome(model, batch, masked, counts)[1].loss
        assert bool(counts[-1] > 0) is there
        assert bool(outcome.loss > without) is there and (there or outcome.loss == without)
        figures = objective.means(dict(zip(objective.stats, outcome.sums.tolist(), strict=True)))
        assert ("overlap_error" in figures) is there
    plain = build_objective(tiny_config(objective=weights), RESOURCES._replace(copies=copies))
    assert isinstance(plain, Overlap) and plain.counts(batch, masked)[-1] > 0, "without copies it holds throughout"


@pytest.mark.parametrize("budget", [("train.steps=12",), ("train.steps=100000", "train.max_minutes=0.05")])
def test_copies_and_their_loss_begin_with_one_step(tmp_path: Path, budget: tuple[str, ...]) -> None:
    """Also with small batches first, where seconds and steps are far apart."""
    keys = ("objective.overlap_weight=2", "data.copies=1", "data.copies_share=0.5", "train.batch_start=2")
    config = small_config(*keys, *budget, "train.log_every=1", "evaluate.every=0")
    with pytest.MonkeyPatch.context() as patch:
        taken: list[bool] = []

        def noted(self: Source, *arguments: Any, **named: Any) -> Iterator[Batch]:
            for batch in original(self, *arguments, **named):
                taken.append(bool(self.copies))
                yield batch

        original = Source.batches
        patch.setattr(Source, "batches", noted)
        run = pretrain(config, data=make_data(tmp_path / "data"), out=tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [("train/overlap_error" in line, line["step"]) for line in lines if line["kind"] == "train"]
    assert [step for _, step in told] == list(range(1, len(told) + 1))
    assert [there for there, _ in told] == taken[: len(told)] and True in taken and taken[0] is False


def test_the_loss_of_a_healthy_run_may_rise_where_copies_begin(tmp_path: Path) -> None:
    keys = ("objective.name=mlm", "objective.overlap_weight=50", "data.copies=1", "data.copies_share=0.5")
    config = small_config(*keys, "train.steps=40", "train.log_every=2", "guard.max_rise=1.2")
    run = pretrain(config, data=make_data(tmp_path / "data"), out=tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if line["kind"] == "train"]
    assert max(losses[10:]) > 2 * min(losses[:10])
