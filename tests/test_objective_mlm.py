"""Masked language modelling (the BERT baseline): 80/10/10 and a loss over the slots only."""

from __future__ import annotations

import copy
import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest, chisquare
from tiny import MASK, SPECIALS, VOCAB, ragged_rows, tiny_config

from electra.batches.masking import choose
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, MaskingConfig, ObjectiveConfig
from electra.model.electra import Bert, build_model
from electra.objective.base import Objective
from electra.objective.corrupt import mask_bert
from electra.objective.table import build_objective
from electra.train.evaluate import evaluate, readable

MLM = ObjectiveConfig(name="mlm", mlm_weight=2.0)


def made(config: Config) -> tuple[Bert, Objective]:
    model = cast(Bert, build_model(config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
        model.head.bias.normal_(generator=torch.Generator().manual_seed(1))
    return model, build_objective(config, SPECIALS)


def many(count: int = 3000) -> tuple[Sequences, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch, its slots' original ids, what is shown there, and all that is shown."""
    batch = unpack(ragged_rows(count, length=128, full=True))
    slots = choose(batch.ids_BL, batch.lengths_B, batch.keys_B, masking=MaskingConfig(), special=(2, 3, 4))
    shown = mask_bert(batch, slots, mask_id=MASK, vocab=VOCAB)
    before, after = (ids.gather(1, slots.positions_BS)[slots.used_BS] for ids in (batch.ids_BL, shown))
    untouched = torch.ones_like(shown, dtype=torch.bool).scatter(1, slots.positions_BS, False)
    assert torch.equal(shown[untouched], batch.ids_BL[untouched]), "only slots change"
    return batch, before, after, shown


def test_80_percent_masked_10_percent_random_10_percent_kept() -> None:
    _, before, after, _ = many()
    total = len(before)
    assert total == 3000 * 19
    masked = int((after == MASK).sum())
    kept = int((after == before).sum())
    # A random token is [MASK] or the original itself once in 150.
    assert binomtest(masked, total, 0.8 + 0.1 / VOCAB).pvalue > 1e-3
    assert binomtest(kept, total, 0.1 + 0.1 / VOCAB).pvalue > 1e-3


def test_defect_the_random_branch_is_alive_and_uniform() -> None:
    """Elsewhere `int(0.1) != 0` switched it off."""
    _, before, after, _ = many()
    random = after[(after != before) & (after != MASK)]
    counts = torch.bincount(random, minlength=VOCAB)
    assert len(counts) == VOCAB
    # [MASK] cannot be told from the masked ones; the text's own ids are a little rarer, being taken for kept ones.
    expected = torch.full((VOCAB,), 1.0, dtype=torch.float64)
    in_text = torch.bincount(before, minlength=VOCAB) / len(before)
    expected = (expected - in_text.double())[torch.arange(VOCAB) != MASK]
    observed = counts[torch.arange(VOCAB) != MASK].double()
    assert chisquare(observed.numpy(), (expected / expected.sum() * observed.sum()).numpy()).pvalue > 1e-3


def test_the_loss_is_what_loops_say() -> None:
    model, objective = made(tiny_config(dropout=0.0, objective=MLM))
    batch = unpack(ragged_rows(10))
    slots = objective.plan(batch)
    counts = objective.counts(batch, slots)
    assert counts.tolist() == [int(slots.used_BS.sum())]
    shown = mask_bert(batch, slots, mask_id=MASK, vocab=VOCAB)
    double = copy.deepcopy(model).double()
    nll, right = [], 0
    with torch.no_grad():
        hidden = double.encoder(double.embeddings(shown, batch.segments_BL, None), batch.lengths_B, None)
        for row, (positions, used) in enumerate(zip(slots.positions_BS, slots.used_BS, strict=True)):
            for position in positions[used].tolist():
                x = double.head.norm(F.gelu(double.head.dense(hidden[row, position])))
                p = torch.softmax(double.embeddings.token.weight @ x + double.head.bias, 0)
                gold = int(batch.ids_BL[row, position])
                nll.append(-math.log(p[gold]))
                right += int(p.argmax()) == gold
    outcome = objective.loss(model, batch, slots, counts)
    assert outcome.loss.item() == pytest.approx(2.0 * sum(nll) / len(nll), rel=1e-5)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    tokens = int(batch.lengths_B.sum())
    assert sums == pytest.approx({"mlm_sum": sum(nll), "slots": len(nll), "mlm_right": right, "tokens": tokens})
    means = objective.means(sums)
    assert means == pytest.approx(
        {"loss": outcome.loss.item(), "mlm_loss": sum(nll) / len(nll), "mlm_accuracy": right / len(nll)}
    )
    elsewhere = objective.loss(model, batch, slots, torch.tensor([1000.0])).loss
    assert elsewhere.item() == pytest.approx(2.0 * sum(nll) / 1000, rel=1e-5)
    figures, sample = evaluate(model, objective, ragged_rows(10).split(4), separator=None)
    assert figures == pytest.approx({"mlm_loss": sum(nll) / len(nll), "mlm_accuracy": right / len(nll)}, rel=1e-5)
    size = int(batch.lengths_B[0])
    assert sample.original == batch.ids_BL[0, :size].tolist() and sample.shown == shown[0, :size].tolist()
    words = readable(sample, [f"t{i}" for i in range(VOCAB)])
    assert (
        words["replaced"] == [] and words["probabilities"] == [] and words["masked"] == [f"t{i}" for i in sample.shown]
    )


def test_start_value() -> None:
    config = tiny_config(objective=ObjectiveConfig(name="mlm"))
    model, objective = build_model(config), build_objective(config, SPECIALS)
    batch = unpack(ragged_rows(16))
    slots = objective.plan(batch)
    loss = objective.loss(model, batch, slots, objective.counts(batch, slots)).loss
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=0.1)


def test_every_parameter_gets_a_gradient_and_the_table_is_tied() -> None:
    model, objective = made(tiny_config(objective=MLM))
    batch = unpack(ragged_rows(8))
    slots = objective.plan(batch)
    objective.loss(model, batch, slots, objective.counts(batch, slots)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    shown = mask_bert(batch, slots, mask_id=MASK, vocab=VOCAB)
    absent = next(token for token in range(5, VOCAB) if not (shown == token).any())
    gradient = model.embeddings.token.weight.grad
    assert gradient is not None and gradient[absent].any(), "a token that no input holds is still an output"


def test_a_batch_without_candidates_has_no_loss() -> None:
    model, objective = made(tiny_config(objective=MLM))
    rows = ragged_rows(1)
    rows[:, :24] = torch.tensor([2, 4, 3, *[0] * 21])
    rows[:, 24], rows[:, 25] = 3, 3
    batch = unpack(rows)
    slots = objective.plan(batch)
    assert objective.loss(model, batch, slots, objective.counts(batch, slots)).loss.item() == 0.0
