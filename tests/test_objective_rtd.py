"""Replaced token detection against plain loops in double precision, and what its gradients may and may not reach."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss, precision_score, recall_score, roc_auc_score
from tiny import (
    MASK,
    OPS,
    VOCAB,
    Trainer,
    in_double,
    layer_norm,
    lowbias32,
    make_electra,
    make_objective,
    plain_fold,
    ragged_rows,
    tiny_config,
)
from torch import Tensor

from electra.batches.masking import CHOOSE, REPLACE, SHOW, MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.objective.base import Objective, Outcome
from electra.train.evaluate import evaluate, readable

FEW = 12  # ids below this are special or in use in short documents
POLICIES = ["without_replacement", "official"]


def made(config: Config) -> tuple[Electra, Objective]:
    return make_electra(config), make_objective(config)


def livelier(model: Electra) -> Electra:
    """Weights several times larger and a generator that knows the few tokens in use: every part of the loss counts."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
        model.generator_head.bias.normal_(generator=torch.Generator().manual_seed(1))
        model.generator_head.bias[5:FEW] += 5
    return model


def loss_of(model: Electra, objective: Objective, batch: Sequences) -> Outcome:
    masked = objective.choose_masked(batch)
    return objective.loss(model, batch, masked, objective.counts(batch, masked))


def uniform(key: int, index: int) -> float:
    bits = lowbias32(key % 2**32 ^ lowbias32(index))
    return ((bits >> 9) + 0.5) / 2**23


def fall(weights: list[float], draw: float) -> int:
    """The index at which the running sum first exceeds the drawn share of the total."""
    goal, so_far = draw * sum(weights), 0.0
    for index, weight in enumerate(weights):
        so_far += weight
        if so_far > goal:
            return index
    raise AssertionError("draws are below 1")


class Naive:
    """A batch's figures, position by position, in double precision and without dropout."""

    def __init__(self, model: Electra, objective: Objective, batch: Sequences) -> None:
        model = in_double(model)
        masked = objective.choose_masked(batch)
        original, lengths, keys = batch.ids_BL.tolist(), batch.lengths_B.tolist(), batch.keys_B.tolist()
        used = [
            [(m, p) for m, (p, u) in enumerate(zip(positions, flags, strict=True)) if u]
            for positions, flags in zip(masked.positions_BM.tolist(), masked.used_BM.tolist(), strict=True)
        ]
        masked_ids = copy.deepcopy(original)
        for row, key in enumerate(keys):
            for m, p in used[row]:
                if uniform(plain_fold(key, SHOW), m) < 0.85:
                    masked_ids[row][p] = MASK
        hidden = self._hidden(model, "generator", torch.tensor(masked_ids), batch)
        table, bias = model.embeddings.token.weight, model.generator_head.bias
        self.nll: list[float] = []
        self.correct: list[bool] = []
        self.sample_correct: list[bool] = []
        self.samples: list[dict[int, list[int]]] = []
        for row, key in enumerate(keys):
            at: dict[int, list[int]] = {}
            for m, p in used[row]:
                head = model.generator_head
                x = layer_norm(head.norm, F.gelu(head.dense(hidden[row, p])))
                p_V = torch.softmax(table @ x + bias, 0).tolist()
                self.nll.append(-math.log(p_V[original[row][p]]))
                self.correct.append(max(range(VOCAB), key=p_V.__getitem__) == original[row][p])
                drawn = plain_fold(plain_fold(key, REPLACE), m)
                blocks = [sum(p_V[start : start + 128]) for start in range(0, VOCAB, 128)]
                block = fall(blocks, uniform(drawn, 0))
                token = block * 128 + fall(p_V[block * 128 : (block + 1) * 128], uniform(drawn, 1))
                at.setdefault(p, []).append(token)
            self.samples.append(at)
        self.corrupted_ids = copy.deepcopy(original)
        for row, at in enumerate(self.samples):
            for p, tokens in at.items():
                self.corrupted_ids[row][p] = sum(tokens) // len(tokens)
            self.sample_correct += [self.corrupted_ids[row][p] == original[row][p] for _, p in used[row]]
        hidden = self._hidden(model, "discriminator", torch.tensor(self.corrupted_ids), batch)
        head = model.discriminator_head
        scores = head.score(F.gelu(head.dense(hidden)))[..., 0].tolist()
        self.logits = [scores[row][p] for row, size in enumerate(lengths) for p in range(size)]
        self.labels = [
            self.corrupted_ids[row][p] != original[row][p] for row, size in enumerate(lengths) for p in range(size)
        ]
        self.bce = [math.log1p(math.exp(z)) - z * y for z, y in zip(self.logits, self.labels, strict=True)]
        self.mlm = sum(self.nll) / len(self.nll)
        self.rtd = sum(self.bce) / len(self.bce)

    @staticmethod
    def _hidden(model: Electra, part: str, ids: Tensor, batch: Sequences) -> Tensor:
        with torch.no_grad():
            x = model.embeddings(ids, batch.segments_BL, None)
            hidden: Tensor = getattr(model, part)(x, batch.lengths_B, None)
        return hidden


@pytest.mark.parametrize("policy", POLICIES)
def test_the_loss_is_what_loops_say(policy: str) -> None:
    masking = MaskingConfig(policy=policy, rate=0.3)  # type: ignore[arg-type]
    weights = ObjectiveConfig(mlm_weight=1.5, rtd_weight=20.0)
    model, objective = made(tiny_config(dropout=0.0, masking=masking, objective=weights))
    livelier(model)
    batch = unpack(ragged_rows(10, vocab=FEW))
    naive = Naive(model, objective, batch)
    outcome = loss_of(model, objective, batch)
    assert outcome.loss.item() == pytest.approx(1.5 * naive.mlm + 20 * naive.rtd, rel=1e-5)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    assert sums == pytest.approx(
        {
            "mlm_sum": sum(naive.nll),
            "masked": len(naive.nll),
            "rtd_sum": sum(naive.bce),
            "tokens": int(batch.lengths_B.sum()),
            "replaced": sum(naive.labels),
            "rtd_correct": sum((z > 0) == y for z, y in zip(naive.logits, naive.labels, strict=True)),
            "scored": int(batch.lengths_B.sum()),
        },
        rel=1e-5,
    )
    assert 0 < sum(naive.labels) < len(naive.nll), "some samples are right, and those count as real"
    if policy == "official":
        assert any(len(set(tokens)) > 1 for at in naive.samples for tokens in at.values()), "a position drawn twice"
    means = objective.means(sums)
    assert means == pytest.approx(
        {
            "loss": outcome.loss.item(),
            "mlm_loss": naive.mlm,
            "rtd_loss": naive.rtd,
            "rtd_accuracy": sums["rtd_correct"] / sums["tokens"],
            "replaced_rate": sums["replaced"] / sums["tokens"],
        },
        rel=1e-5,
    )


def test_the_denominators_are_the_given_counts() -> None:
    """A micro-batch divides by the counts of the whole batch, never by its own."""
    model, objective = made(tiny_config(dropout=0.0))
    batch = unpack(ragged_rows(6))
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    assert counts.tolist() == [int(masked.used_BM.sum()), int(batch.lengths_B.sum())]
    sums = dict(zip(objective.stats, objective.loss(model, batch, masked, counts).sums.tolist(), strict=True))
    loss = objective.loss(model, batch, masked, torch.tensor([100.0, 7000.0])).loss
    assert loss.item() == pytest.approx(sums["mlm_sum"] / 100 + 50 * sums["rtd_sum"] / 7000, rel=1e-6)


def test_what_stands_in_padding_does_not_matter() -> None:
    model, objective = made(tiny_config())
    livelier(model)
    rows = ragged_rows(8)
    other = rows.clone()
    for row in other:
        row[int(row[24]) : 24] = 77
    assert torch.equal(loss_of(model, objective, unpack(rows)).sums, loss_of(model, objective, unpack(other)).sums)


def test_special_tokens_count_in_the_detection_loss() -> None:
    """A discriminator that is sure and wrong about [CLS] and [SEP] pays for it."""
    model, objective = made(tiny_config(dropout=0.0))
    batch = unpack(ragged_rows(8))
    sums = dict(zip(objective.stats, loss_of(model, objective, batch).sums.tolist(), strict=True))
    assert sums["tokens"] == int(batch.lengths_B.sum())
    # A constant answer z costs log(1 + e^z) for each real token, [CLS] and [SEP] included, and z less if replaced.
    with torch.no_grad():
        model.discriminator_head.score.weight.zero_()
        model.discriminator_head.score.bias.fill_(3.0)
    sums = dict(zip(objective.stats, loss_of(model, objective, batch).sums.tolist(), strict=True))
    expected = sums["tokens"] * math.log1p(math.exp(3.0)) - 3.0 * sums["replaced"]
    assert sums["rtd_sum"] == pytest.approx(expected, rel=1e-6)
    assert sums["rtd_correct"] == sums["replaced"]


def test_a_generator_that_is_always_right_replaces_nothing() -> None:
    model, objective = made(tiny_config(dropout=0.0))
    rows = ragged_rows(8)
    ids = rows[:, :24]
    ids[ids > MASK] = 42
    with torch.no_grad():
        model.generator_head.bias[42] = 1000.0
    sums = dict(zip(objective.stats, loss_of(model, objective, unpack(rows)).sums.tolist(), strict=True))
    assert sums["replaced"] == 0
    assert sums["masked"] > 0 and sums["mlm_sum"] == pytest.approx(0.0, abs=1e-4)


def gradients(config: Config, *, mlm: float, rtd: float) -> dict[str, Tensor]:
    weights = ObjectiveConfig(mlm_weight=mlm, rtd_weight=rtd)
    model, objective = made(replace(config, objective=weights))
    livelier(model)
    loss_of(model, objective, unpack(ragged_rows(8))).loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in found.values())
    return cast(dict[str, Tensor], found)


def test_the_detection_loss_does_not_reach_the_generator() -> None:
    found = gradients(tiny_config(), mlm=0.0, rtd=50.0)
    for name, gradient in found.items():
        if name.startswith("generator"):
            assert not gradient.any(), name
        else:
            assert gradient.any(), name


def test_defect_the_detection_loss_is_optimised() -> None:
    """Elsewhere only the first of the two losses ever reached the backward."""
    both, only_mlm = gradients(tiny_config(), mlm=1.0, rtd=50.0), gradients(tiny_config(), mlm=1.0, rtd=0.0)
    names = [name for name in both if name.startswith("discriminator")]
    assert names and all(both[name].any() and not only_mlm[name].any() for name in names)


def test_shared_embeddings_get_the_sum_of_both_gradients() -> None:
    both = gradients(tiny_config(), mlm=1.0, rtd=50.0)
    apart = gradients(tiny_config(), mlm=1.0, rtd=0.0), gradients(tiny_config(), mlm=0.0, rtd=50.0)
    for name in ("token.weight", "position.weight", "segment.weight", "norm.weight", "norm.bias"):
        name = f"embeddings.{name}"
        assert all(part[name].any() for part in apart), name
        torch.testing.assert_close(both[name], apart[0][name] + apart[1][name], rtol=1e-4, atol=1e-5)


def test_defect_the_output_matrix_of_the_generator_is_the_input_table() -> None:
    model, objective = made(tiny_config(dropout=0.0))
    tables = [name for name, p in model.named_parameters() if p.shape[0] == VOCAB and p.ndim == 2]
    assert tables == ["embeddings.token.weight"]
    batch = unpack(ragged_rows(4))
    absent = next(token for token in range(5, VOCAB) if not (batch.ids_BL == token).any())
    with torch.no_grad():
        before = objective.evaluate(model, batch).nll_BM.clone()
        model.embeddings.token.weight[absent] *= -50.0
        after = objective.evaluate(model, batch).nll_BM
    # No input holds this token: only the output matrix can have changed the predictions.
    assert (before != after).any()
    found = gradients(tiny_config(), mlm=1.0, rtd=0.0)["embeddings.token.weight"]
    assert found.any(1).all(), "every entry is an output, so every one learns from the masked tokens"
    # It is still so once the weights live in flat buffers.
    trainer = Trainer(tiny_config(), micro=4)
    electra = cast(Electra, trainer.model)
    assert electra.generator_embeddings is electra.embeddings
    trainer.step(ragged_rows(4), 1e-2)
    stored = trainer.master.tensors()["model"]["embeddings.token.weight"]
    assert stored.data_ptr() == electra.generator_embeddings.token.weight.data_ptr()


def test_defect_the_detection_loss_weighs_50() -> None:
    assert (ObjectiveConfig().mlm_weight, ObjectiveConfig().rtd_weight) == (1.0, 50.0)
    model, objective = made(tiny_config(dropout=0.0))
    batch = unpack(ragged_rows(6))
    outcome = loss_of(model, objective, batch)
    means = objective.means(dict(zip(objective.stats, outcome.sums.tolist(), strict=True)))
    assert outcome.loss.item() == pytest.approx(means["mlm_loss"] + 50 * means["rtd_loss"], rel=1e-6)


def test_start_values() -> None:
    """A fresh network knows nothing: ln V for the masked tokens, about ln 2 for each real token, 45 in all."""
    model, objective = made(replace(Config(), model=replace(Config().model, layers=2)))
    batch = unpack(ragged_rows(8, length=128, vocab=30522, full=True))
    outcome = loss_of(model, objective, batch)
    means = objective.means(dict(zip(objective.stats, outcome.sums.tolist(), strict=True)))
    assert means["mlm_loss"] == pytest.approx(math.log(30522), abs=0.1)
    assert means["rtd_loss"] == pytest.approx(math.log(2), abs=0.06)
    assert 42 < means["loss"] < 48
    assert means["replaced_rate"] == pytest.approx(19 / 128, abs=0.001), "an untrained generator is never right"


def test_dropout_is_on_in_training_only() -> None:
    still, _ = made(tiny_config(dropout=0.0))
    model, objective = made(tiny_config(dropout=0.5))
    model.load_state_dict(still.state_dict())
    batch = unpack(ragged_rows(6))
    quiet = loss_of(still, objective, batch).sums
    assert not torch.allclose(loss_of(model, objective, batch).sums, quiet, rtol=1e-3)
    one, other = objective.evaluate(model, batch), objective.evaluate(still, batch)
    assert one.logits_BL is not None and other.logits_BL is not None
    assert torch.equal(one.logits_BL, other.logits_BL) and torch.equal(one.nll_BM, other.nll_BM)


def test_purposes_have_addresses_of_their_own() -> None:
    assert len({CHOOSE, SHOW, REPLACE}) == 3


def test_a_batch_without_candidates_still_teaches_the_discriminator() -> None:
    model, objective = made(tiny_config(dropout=0.0))
    rows = ragged_rows(2)
    rows[:, :24] = torch.tensor([2, 4, 3, *[0] * 21])
    rows[:, 24], rows[:, 25] = 3, 3
    outcome = loss_of(model, objective, unpack(rows))
    assert outcome.loss.item() == pytest.approx(50 * math.log(2), abs=3)


def test_official_replacement_averages_the_ids_of_a_position_drawn_twice() -> None:
    rows = ragged_rows(1, full=True)
    batch = unpack(rows)
    positions = torch.tensor([[5, 7, 5, 7, 9, 0]])
    used = torch.tensor([[True, True, True, True, True, False]])
    sampled = torch.tensor([[10, 21, 15, 21, 30, 99]])
    masked = MaskedPositions(positions, used)
    corrupted_ids = OPS.replace_tokens(batch.ids_BL, masked, sampled.flatten(), average=True)
    expected = rows[:, :24].clone()
    expected[0, 5], expected[0, 7], expected[0, 9] = 12, 21, 30  # floor of 12.5
    assert torch.equal(corrupted_ids, expected)
    single = MaskedPositions(positions[:, [0, 1, 4, 5]], used[:, [0, 1, 4, 5]])
    for average in (True, False):
        few = sampled[:, [0, 1, 4, 5]].flatten()
        corrupted_ids = OPS.replace_tokens(batch.ids_BL, single, few, average=average)
        expected[0, 5] = 10
        assert torch.equal(corrupted_ids, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_held_out_figures_are_what_loops_and_scikit_learn_say(policy: str) -> None:
    masking = MaskingConfig(policy=policy, rate=0.3)  # type: ignore[arg-type]
    model, objective = made(tiny_config(masking=masking))
    livelier(model)
    rows = ragged_rows(11, vocab=FEW)
    figures, _ = evaluate(model, objective, rows.split(4), separator=None)  # the last batch is smaller
    naive = Naive(model, objective, unpack(rows))
    flagged = [z > 0 for z in naive.logits]
    probabilities = [1 / (1 + math.exp(-z)) for z in naive.logits]
    assert figures == pytest.approx(
        {
            "mlm_loss": naive.mlm,
            "mlm_accuracy": sum(naive.correct) / len(naive.correct),
            "sampled_accuracy": sum(naive.sample_correct) / len(naive.sample_correct),
            "rtd_loss": log_loss(naive.labels, probabilities),
            "rtd_accuracy": accuracy_score(naive.labels, flagged),
            "rtd_precision": precision_score(naive.labels, flagged),
            "rtd_recall": recall_score(naive.labels, flagged),
            "rtd_auc": roc_auc_score(naive.labels, naive.logits),
            "replaced_rate": sum(naive.labels) / len(naive.labels),
        },
        rel=1e-5,
    )
    assert 0 < figures["mlm_accuracy"] < 1 and 0 < figures["sampled_accuracy"] < 1


def test_the_sample_shows_the_first_sequence() -> None:
    model, objective = made(tiny_config())
    livelier(model)
    rows = ragged_rows(3)
    _, (sample, *_) = evaluate(model, objective, [rows], separator=None)
    batch = unpack(rows)
    naive = Naive(model, objective, batch)
    size = int(batch.lengths_B[0])
    assert sample.original == batch.ids_BL[0, :size].tolist()
    assert sample.corrupted == naive.corrupted_ids[0][:size]
    assert sample.probabilities == pytest.approx([1 / (1 + math.exp(-z)) for z in naive.logits[:size]], rel=1e-4)
    tokens = readable(sample, [f"t{i}" for i in range(VOCAB)])
    assert tokens["original"] == [f"t{i}" for i in sample.original]
    changed = {i for i in range(size) if sample.original[i] != sample.masked[i]}
    differs = {i for i in range(size) if sample.original[i] != sample.corrupted[i]}
    assert changed and {sample.masked[i] for i in changed} == {MASK}
    assert tokens["positions"] == sorted(changed | differs)
