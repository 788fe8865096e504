"""Replaced token detection whose discriminator also predicts the original tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import Trainer, in_double, make_electra, make_objective, ragged_rows, tiny_config
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights

from electra.batches.sequences import unpack
from electra.config.schema import ObjectiveConfig, TrainConfig
from electra.config.validate import validate
from electra.errors import ConfigError
from electra.model.heads import MaskedHead
from electra.objective.corrective import Corrective
from electra.pretrain import pretrain

CONFIG = tiny_config(dropout=0.0, objective=ObjectiveConfig(correction_weight=0.7))


def test_the_loss_is_detections_plus_the_weighted_cross_entropy() -> None:
    objective, model, batch = make_objective(CONFIG), make_electra(CONFIG), unpack(ragged_rows(6))
    assert isinstance(objective, Corrective)
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    got = objective.loss(model, batch, masked, counts)
    rtd = objective.rtd
    without = rtd.loss(model, batch, masked, counts)
    samples = rtd.generator.sample(model, batch, masked, dropout=False, logits=False)
    found = rtd.detect(model, batch, masked, samples, without.loss)
    head = model.correction_head
    assert isinstance(head, MaskedHead)
    exact, table = in_double(head), model.embeddings.token.weight.double()
    rows = torch.arange(len(batch.ids_BL))[:, None].expand_as(masked.positions_BM)
    used = masked.used_BM
    states = exact.states(found.read.hidden_BLD[rows, masked.positions_BM][used].double())
    gold = batch.ids_BL[rows, masked.positions_BM][used].long()
    wanted = F.cross_entropy(states @ table.T + exact.bias, gold, reduction="sum")
    assert got.sums[-1].item() == pytest.approx(wanted.item(), rel=1e-5)
    mean = wanted.item() / used.sum().item()
    assert (got.loss - without.loss).item() == pytest.approx(0.7 * mean, rel=1e-4)


def test_training_lowers_the_correction_loss() -> None:
    trainer = Trainer(CONFIG, micro=8)
    losses = []
    for _ in range(60):
        trainer.step(ragged_rows(8), 3e-3)
        losses.append(trainer.objective.means(trainer.step.read())["correction_loss"])
    assert losses[-1] < 0.6 * losses[0]


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    options = ("objective.correction_weight=1", "generator.clip=1", "generator.lr_scale=0.5", "optim.matrices=muon")
    config = small_config(*options)
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    stop_at(5, config, data=data, out=tmp_path / "parts")
    parts = pretrain(config, data=data, out=tmp_path / "parts")
    assert weights(whole) == weights(parts)
    assert any("train/correction_loss" in line for line in metric_lines(whole))


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": ObjectiveConfig(name="replace-mlm", correction_weight=1.0)},
        {"objective": ObjectiveConfig(contrastive_weight=1.0, correction_weight=1.0)},
        {"objective": ObjectiveConfig(correction_weight=1.0), "train": TrainConfig(algorithm="adversarial")},
    ],
)
def test_other_objectives_refuse_it(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="correction_weight"):
        validate(tiny_config(**wrong))
