"""Masked language modelling (the BERT baseline): 80/10/10 and a loss over the masked positions only."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest, chisquare
from tiny import MASK, OPS, VOCAB, in_double, layer_norm, make_model, make_objective, ragged_rows, tiny_config

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, MaskingConfig, ObjectiveConfig
from electra.model.electra import Bert
from electra.objective.base import Objective
from electra.objective.mlm import MASK_SHARE, RANDOM_SHARE
from electra.train.evaluate import evaluate, readable

MLM = ObjectiveConfig(name="mlm", mlm_weight=2.0)


def made(config: Config) -> tuple[Bert, Objective]:
    model = cast(Bert, make_model(config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
        model.head.bias.normal_(generator=torch.Generator().manual_seed(1))
    return model, make_objective(config)


def apply_mask(batch: Sequences, masked: MaskedPositions) -> torch.Tensor:
    """What BERT reads."""
    shares = {"mask_share": MASK_SHARE, "random_share": RANDOM_SHARE}
    return OPS.apply_mask(batch.ids_BL, batch.keys_B, masked, **shares, mask_id=MASK, vocab=VOCAB)


def many(count: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
    """The original ids at the masked positions, and the ids that BERT reads there."""
    batch = unpack(ragged_rows(count, length=128, full=True))
    masked = OPS.choose_masked(*batch.addressed, masking=MaskingConfig(), special=(2, 3, 4))
    masked_ids = apply_mask(batch, masked)
    before, after = (ids.gather(1, masked.positions_BM)[masked.used_BM] for ids in (batch.ids_BL, masked_ids))
    untouched = torch.ones_like(masked_ids, dtype=torch.bool).scatter(1, masked.positions_BM, False)
    assert torch.equal(masked_ids[untouched], batch.ids_BL[untouched]), "only masked positions change"
    return before, after


def test_80_percent_masked_10_percent_random_10_percent_kept() -> None:
    before, after = many()
    total = len(before)
    assert total == 3000 * 19
    masked = int((after == MASK).sum())
    kept = int((after == before).sum())
    # A random token is [MASK] or the original itself once in 150.
    assert binomtest(masked, total, 0.8 + 0.1 / VOCAB).pvalue > 1e-3
    assert binomtest(kept, total, 0.1 + 0.1 / VOCAB).pvalue > 1e-3


def test_defect_the_random_branch_is_alive_and_uniform() -> None:
    """Elsewhere `int(0.1) != 0` switched it off."""
    before, after = many()
    random = after[(after != before) & (after != MASK)]
    counts = torch.bincount(random, minlength=VOCAB)
    assert len(counts) == VOCAB
    # A random [MASK] looks like any other; ids of the sequences are a little rarer, as some look kept.
    expected = torch.full((VOCAB,), 1.0, dtype=torch.float64)
    in_sequences = torch.bincount(before, minlength=VOCAB) / len(before)
    expected = (expected - in_sequences.double())[torch.arange(VOCAB) != MASK]
    observed = counts[torch.arange(VOCAB) != MASK].double()
    assert chisquare(observed.numpy(), (expected / expected.sum() * observed.sum()).numpy()).pvalue > 1e-3


def test_the_loss_is_what_loops_say() -> None:
    model, objective = made(tiny_config(dropout=0.0, objective=MLM))
    batch = unpack(ragged_rows(10))
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    assert counts.tolist() == [int(masked.used_BM.sum())]
    masked_ids = apply_mask(batch, masked)
    double = in_double(model)
    nll, correct = [], 0
    with torch.no_grad():
        hidden = double.encoder(double.embeddings(masked_ids, batch.segments_BL, None), batch.lengths_B, None)
        for row, (positions, used) in enumerate(zip(masked.positions_BM, masked.used_BM, strict=True)):
            for position in positions[used].tolist():
                x = layer_norm(double.head.norm, F.gelu(double.head.dense(hidden[row, position])))
                p = torch.softmax(double.embeddings.token.weight @ x + double.head.bias, 0)
                gold = int(batch.ids_BL[row, position])
                nll.append(-math.log(p[gold]))
                correct += int(p.argmax()) == gold
    outcome = objective.loss(model, batch, masked, counts)
    assert outcome.loss.item() == pytest.approx(2.0 * sum(nll) / len(nll), rel=1e-5)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    tokens = int(batch.lengths_B.sum())
    assert sums == pytest.approx({"mlm_sum": sum(nll), "masked": len(nll), "mlm_correct": correct, "tokens": tokens})
    means = objective.means(sums)
    assert means == pytest.approx(
        {"loss": outcome.loss.item(), "mlm_loss": sum(nll) / len(nll), "mlm_accuracy": correct / len(nll)}
    )
    elsewhere = objective.loss(model, batch, masked, torch.tensor([1000.0])).loss
    assert elsewhere.item() == pytest.approx(2.0 * sum(nll) / 1000, rel=1e-5)
    figures, (sample, *_) = evaluate(model, objective, ragged_rows(10).split(4), separator=None)
    assert figures == pytest.approx({"mlm_loss": sum(nll) / len(nll), "mlm_accuracy": correct / len(nll)}, rel=1e-5)
    size = int(batch.lengths_B[0])
    assert sample.original == batch.ids_BL[0, :size].tolist() and sample.masked == masked_ids[0, :size].tolist()
    tokens_of = readable(sample, [f"t{i}" for i in range(VOCAB)])
    assert tokens_of["masked"] == [f"t{i}" for i in sample.masked]
    assert tokens_of["replaced"] == [] and tokens_of["probabilities"] == []


def test_start_value() -> None:
    config = tiny_config(objective=ObjectiveConfig(name="mlm"))
    model, objective = make_model(config), make_objective(config)
    batch = unpack(ragged_rows(16))
    masked = objective.choose_masked(batch)
    loss = objective.loss(model, batch, masked, objective.counts(batch, masked)).loss
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=0.1)


def test_every_parameter_gets_a_gradient_and_the_table_is_tied() -> None:
    model, objective = made(tiny_config(objective=MLM))
    batch = unpack(ragged_rows(8))
    masked = objective.choose_masked(batch)
    objective.loss(model, batch, masked, objective.counts(batch, masked)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    masked_ids = apply_mask(batch, masked)
    absent = next(token for token in range(5, VOCAB) if not (masked_ids == token).any())
    gradient = model.embeddings.token.weight.grad
    assert gradient is not None and gradient[absent].any(), "a token that no input holds is still an output"


def test_a_batch_without_candidates_has_no_loss() -> None:
    model, objective = made(tiny_config(objective=MLM))
    rows = ragged_rows(1)
    rows[:, :24] = torch.tensor([2, 4, 3, *[0] * 21])
    rows[:, 24], rows[:, 25] = 3, 3
    batch = unpack(rows)
    masked = objective.choose_masked(batch)
    assert objective.loss(model, batch, masked, objective.counts(batch, masked)).loss.item() == 0.0
