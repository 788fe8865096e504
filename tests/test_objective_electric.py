"""Electric against plain loops in double precision, its optimum on a toy language, and where its gradients go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss, roc_auc_score
from tiny import (
    CLS,
    MASK,
    SEP,
    VOCAB,
    Trainer,
    in_double,
    layer_norm,
    make_electra,
    make_model,
    make_objective,
    ragged_rows,
    tiny_config,
)
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, ObjectiveConfig
from electra.config.validate import validate
from electra.errors import ConfigError
from electra.model.electra import Electra
from electra.objective.electric import Electric
from electra.train.evaluate import evaluate

FEW = 12
TOWERS = GeneratorConfig(kind="two-tower", width=0.5)


def electric(**parts: object) -> Config:
    objective = parts.pop("objective", ObjectiveConfig(name="electric"))
    return tiny_config(**{"dropout": 0.0, "generator": TOWERS, "objective": objective, **parts})


def made(config: Config) -> tuple[Electra, Electric]:
    """A model whose weights are large enough that every part of the loss counts."""
    model = make_electra(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
        assert model.generator_head is not None
        model.generator_head.bias.normal_(generator=torch.Generator().manual_seed(1))
        model.generator_head.bias[5:FEW] += 5
    return model, cast(Electric, make_objective(config))


def loss_of(model: Electra, objective: Electric, batch: Sequences) -> Tensor:
    masked = objective.choose_masked(batch)
    return objective.loss(model, batch, masked, objective.counts(batch, masked)).loss


def gradients(model: Electra) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


class Naive:
    """A batch's figures, token by token, in double precision; what was sampled is taken as given."""

    def __init__(self, model: Electra, objective: Electric, batch: Sequences, rate: float) -> None:
        masked = objective.choose_masked(batch)
        with torch.inference_mode():
            corrupted_ids = objective.evaluate(model, batch).corrupted_ids_BL
        assert corrupted_ids is not None
        model = in_double(model)
        head = model.generator_head
        assert head is not None and model.generator is not None
        with torch.no_grad():
            x = model.generator_embeddings(batch.ids_BL, batch.segments_BL, None)
            around = model.generator(x, batch.lengths_B, None)
            hidden = model.discriminator(model.embed(corrupted_ids, batch.segments_BL, None), batch.lengths_B, None)
        table, bias = model.generator_embeddings.token.weight, head.bias
        self.cloze: list[float] = []
        self.logits: list[float] = []
        self.labels: list[bool] = []
        self.lucky = 0
        for row, size in enumerate(batch.lengths_B.tolist()):
            chosen = set(masked.positions_BM[row][masked.used_BM[row]].tolist())
            for place in range(size):
                was, now = int(batch.ids_BL[row, place]), int(corrupted_ids[row, place])
                if was in (CLS, SEP, MASK):
                    assert now == was and place not in chosen
                    continue
                with torch.no_grad():
                    scores = table @ layer_norm(head.norm, F.gelu(head.dense(around[row, place]))) + bias
                    q = torch.softmax(scores, 0).tolist()
                    detect = model.discriminator_head
                    energy = float(detect.score(F.gelu(detect.dense(hidden[row, place]))))  # type: ignore[union-attr]
                noise, data = rate * q[now], (1 - rate) * math.exp(-energy)
                self.cloze.append(-math.log(q[was]))
                self.logits.append(math.log(noise / data))
                self.labels.append(place in chosen)
                self.lucky += place in chosen and now == was
        posterior = [1 / (1 + math.exp(-z)) for z in self.logits]
        self.nce = [-math.log(p if y else 1 - p) for p, y in zip(posterior, self.labels, strict=True)]
        self.posterior = posterior


@pytest.mark.parametrize("tying", ["embeddings", "none", "gdes"])
def test_the_loss_is_what_loops_say(tying: str) -> None:
    weights = ObjectiveConfig(name="electric", mlm_weight=1.5, rtd_weight=20.0)
    masking = MaskingConfig(rate=0.3)
    generator = replace(TOWERS, tying=tying)  # type: ignore[arg-type]
    model, objective = made(electric(masking=masking, objective=weights, generator=generator))
    rows = ragged_rows(10, vocab=FEW)
    batch = unpack(rows)
    naive = Naive(model, objective, batch, 0.3)
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    assert counts.tolist() == [len(naive.cloze)]
    outcome = objective.loss(model, batch, masked, counts)
    mlm, nce = sum(naive.cloze) / len(naive.cloze), sum(naive.nce) / len(naive.nce)
    assert outcome.loss.item() == pytest.approx(1.5 * mlm + 20 * nce, rel=1e-5)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    correct = sum((z > 0) == y for z, y in zip(naive.logits, naive.labels, strict=True))
    changed = sum(naive.labels) - naive.lucky
    assert sums == pytest.approx(
        {
            "mlm_sum": sum(naive.cloze),
            "rtd_sum": sum(naive.nce),
            "scored": len(naive.cloze),
            "rtd_correct": correct,
            "replaced": changed,
            "tokens": int(batch.lengths_B.sum()),
        },
        rel=1e-5,
    )
    assert naive.lucky > 0 and changed > 0, "samples that are right count as samples"
    assert objective.means(sums) == pytest.approx(
        {
            "loss": outcome.loss.item(),
            "mlm_loss": mlm,
            "rtd_loss": nce,
            "rtd_accuracy": correct / len(naive.cloze),
            "replaced_rate": changed / int(batch.lengths_B.sum()),
        },
        rel=1e-5,
    )
    figures, (sample, *_) = evaluate(model, objective, [rows], separator=None)
    assert figures["rtd_loss"] == pytest.approx(log_loss(naive.labels, naive.posterior), rel=1e-5)
    assert figures["rtd_auc"] == pytest.approx(roc_auc_score(naive.labels, naive.logits), rel=1e-5)
    assert figures["sampled_accuracy"] == pytest.approx(naive.lucky / sum(naive.labels), rel=1e-5)
    assert figures["replaced_rate"] == pytest.approx(sum(naive.labels) / len(naive.labels), rel=1e-5)
    assert sample.probabilities[0] == sample.probabilities[-1] == 0, "[CLS] and [SEP] are never sampled"


def test_averaged_duplicates_are_scored_by_their_own_probability() -> None:
    masking = MaskingConfig(rate=0.4, policy="official")
    model, objective = made(electric(masking=masking))
    batch = unpack(ragged_rows(10, vocab=FEW))
    naive = Naive(model, objective, batch, 0.4)
    mlm, nce = sum(naive.cloze) / len(naive.cloze), sum(naive.nce) / len(naive.nce)
    assert loss_of(model, objective, batch).item() == pytest.approx(mlm + 50 * nce, rel=1e-5)


@pytest.mark.parametrize("tying", ["embeddings", "none", "gdes"])
def test_each_loss_reaches_its_own_network_only(tying: str) -> None:
    generator = replace(TOWERS, tying=tying)  # type: ignore[arg-type]
    for mlm, rtd in ((0.0, 50.0), (1.0, 0.0)):
        weights = ObjectiveConfig(name="electric", mlm_weight=mlm, rtd_weight=rtd)
        model, objective = made(electric(objective=weights, generator=generator))
        loss_of(model, objective, unpack(ragged_rows(8))).backward()
        found = gradients(model)
        parts = {name.split(".")[0] for name in found}
        if rtd:
            assert parts == {"embeddings", "discriminator", "discriminator_head"}
        else:
            own = "embeddings" if tying == "embeddings" else "generator_embeddings"
            assert parts == {own, "generator", "generator_head"}


def test_the_probability_of_a_sample_is_a_constant() -> None:
    """The shared table's gradient from the NCE is that of the discriminator's reading alone."""
    weights = ObjectiveConfig(name="electric", mlm_weight=0.0, rtd_weight=1.0)
    model, objective = made(electric(objective=weights))
    batch = unpack(ragged_rows(8))
    masked = objective.choose_masked(batch)
    loss_of(model, objective, batch).backward()
    ours = gradients(model)
    model.zero_grad()
    with torch.no_grad():
        found = objective.evaluate(model, batch)
    assert found.corrupted_ids_BL is not None and found.logits_BL is not None and found.scored_BL is not None
    energies = model.discriminator_head(
        model.discriminator(model.embed(found.corrupted_ids_BL, batch.segments_BL, None), batch.lengths_B, None)
    )
    constant = found.logits_BL - energies.detach()
    assert found.fake_BL is not None
    each = F.binary_cross_entropy_with_logits(energies + constant, found.fake_BL.float(), reduction="none")
    (each[found.scored_BL].sum() / objective.counts(batch, masked)[0]).backward()
    expected = gradients(model)
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-7)


def test_some_rows_at_a_time_is_all_at_once() -> None:
    model, objective = made(electric())
    batch = unpack(ragged_rows(9))
    results = []
    for rows in (7, 64, 10**6):
        model.zero_grad()
        loss = loss_of(model, replace(objective, chunk_rows=rows), batch)
        loss.backward()
        results.append((loss.item(), gradients(model)))
    for loss_value, found in results[:-1]:
        assert loss_value == pytest.approx(results[-1][0], rel=1e-6)
        assert found.keys() == results[-1][1].keys()
        for name, gradient in results[-1][1].items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_no_logits_of_every_position_are_saved() -> None:
    model, objective = made(electric())
    batch = unpack(ragged_rows(32))
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss_of(model, replace(objective, chunk_rows=64), batch)
    padded = 256  # the vocabulary in whole blocks
    logits = {shape for shape in shapes if shape and shape[-1] == padded} - {(padded,), (16, padded)}
    assert len(shapes) > 20 and not logits, "only the table itself is that large"


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_do_not_change_the_step(micro: int) -> None:
    weights = []
    for size in (8, micro):
        trainer = Trainer(electric(), micro=size)
        for seed in range(3):
            trainer.step(ragged_rows(8, seed=seed), 1e-3)
        weights.append((trainer.master.gradient.clone(), trainer.step.read()))
    torch.testing.assert_close(weights[1][0], weights[0][0], rtol=1e-3, atol=1e-5)
    assert weights[1][1] == pytest.approx(weights[0][1], rel=1e-4)


def test_padding_does_not_matter() -> None:
    model, objective = made(electric())
    batch = unpack(ragged_rows(8))
    padded = torch.arange(24) >= batch.lengths_B[:, None]
    other = batch._replace(ids_BL=torch.where(padded, 77, batch.ids_BL))
    assert loss_of(model, objective, other).item() == pytest.approx(loss_of(model, objective, batch).item(), rel=1e-5)


def test_a_batch_without_a_candidate_is_nothing_to_learn() -> None:
    model, objective = made(electric())
    batch = unpack(ragged_rows(2))
    batch = batch._replace(ids_BL=torch.full_like(batch.ids_BL, SEP))
    loss = loss_of(model, objective, batch)
    loss.backward()
    assert loss.item() == 0 and not gradients(model)


class ToyLanguage:
    """Four tokens drawn from p whatever stands around them, replaced by samples of q, and a network that reads neither
    position nor neighbours: what it must learn is known exactly."""

    TOKENS = (5, 6, 7, 8)
    P = np.array([0.5, 0.3, 0.15, 0.05])
    Q = np.array([0.1, 0.2, 0.3, 0.4])
    RATE = 0.25

    def __init__(self) -> None:
        masking = MaskingConfig(rate=self.RATE)
        objective = ObjectiveConfig(name="electric", mlm_weight=0.0, rtd_weight=1.0)
        self.model, self.objective = made(electric(masking=masking, objective=objective))
        model = self.model
        head = model.generator_head
        assert head is not None
        with torch.no_grad():
            head.norm.weight.zero_()  # nothing but the bias is left: q does not depend on anything
            head.norm.bias.zero_()
            head.bias.fill_(-1e4)
            head.bias[list(self.TOKENS)] = torch.tensor(np.log(self.Q), dtype=torch.float32)
            model.embeddings.position.weight.zero_()
            model.embeddings.segment.weight.zero_()
            for layer in model.discriminator.layers:
                for linear in (layer.attention.out, layer.down):  # type: ignore[union-attr]
                    linear.weight.zero_()  # type: ignore[union-attr,operator]
                    linear.bias.zero_()  # type: ignore[union-attr,operator]
        rows = ragged_rows(800, full=True)
        random = np.random.default_rng(5)
        tokens = torch.from_numpy(random.choice(self.TOKENS, p=self.P, size=(800, 24)).astype(np.int32))
        rows[:, :24] = torch.where(rows[:, :24] > MASK, tokens, rows[:, :24])
        self.batch = unpack(rows)
        self.masked: MaskedPositions = self.objective.choose_masked(self.batch)

    def loss(self) -> Tensor:
        counts = self.objective.counts(self.batch, self.masked)
        return self.objective.loss(self.model, self.batch, self.masked, counts).loss

    def energies(self) -> Tensor:
        ids = torch.tensor([self.TOKENS])
        hidden = self.model.discriminator(self.model.embed(ids, torch.zeros_like(ids), None), None)
        energies: Tensor = self.model.discriminator_head(hidden)[0]
        return energies


def test_the_loss_is_least_where_the_energy_is_minus_the_log_probability() -> None:
    toy = ToyLanguage()
    score = toy.model.discriminator_head.score
    for parameter in toy.model.parameters():
        parameter.requires_grad_(False)
    score.weight.requires_grad_(True)  # type: ignore[union-attr,operator]
    score.bias.requires_grad_(True)  # type: ignore[union-attr,operator]
    solver = torch.optim.LBFGS(score.parameters(), lr=1.0, max_iter=60, line_search_fn="strong_wolfe")  # type: ignore[union-attr,operator]

    def closure() -> Tensor:
        solver.zero_grad()
        loss = toy.loss()
        loss.backward()
        return loss

    solver.step(closure)
    with torch.no_grad():
        learned = toy.energies().neg().exp().double().numpy()
        found = toy.objective.evaluate(toy.model, toy.batch)
    assert found.corrupted_ids_BL is not None and found.fake_BL is not None and found.scored_BL is not None
    # What the counts themselves say: exp(-E) = q · (r / (1 - r)) · kept / sampled, token by token.
    exact = []
    for token, q in zip(toy.TOKENS, toy.Q, strict=True):
        here = (found.corrupted_ids_BL == token) & found.scored_BL
        kept, sampled = int((here & ~found.fake_BL).sum()), int((here & found.fake_BL).sum())
        exact.append(q * toy.RATE / (1 - toy.RATE) * kept / sampled)
    assert learned == pytest.approx(np.array(exact), rel=1e-2)
    # And up to sampling error and the rounding of how many are chosen (6 of 21 or 22), that is p.
    chosen = float(toy.masked.used_BM.sum()) / float(toy.objective.counts(toy.batch, toy.masked))
    offset = (1 - chosen) / chosen * toy.RATE / (1 - toy.RATE)
    assert learned / offset == pytest.approx(toy.P, rel=0.06)
    assert learned.sum() == pytest.approx(offset, rel=0.03), "normalised, though no sum was ever taken"
    with torch.no_grad():
        best = toy.loss().item()
        for step in (-0.2, 0.2):
            score.bias.add_(step)  # type: ignore[union-attr,operator]
            assert toy.loss().item() > best + 1e-4
            score.bias.sub_(step)  # type: ignore[union-attr,operator]


def test_start_values() -> None:
    """ln V for the towers; energies of 0 miss nearly every sample, those of a uniform guess know the base rate."""
    batch = unpack(ragged_rows(64, full=True))
    for start, nce in ((False, 0.29 * (math.log(VOCAB) + math.log(0.75 / 0.25))), (True, 0.60)):
        weights = ObjectiveConfig(name="electric", base_rate_start=start)
        config = electric(masking=MaskingConfig(rate=0.25), objective=weights)
        objective = make_objective(config)
        masked = objective.choose_masked(batch)
        outcome = objective.loss(make_model(config), batch, masked, objective.counts(batch, masked))
        means = objective.means(dict(zip(objective.stats, outcome.sums.tolist(), strict=True)))
        assert means["mlm_loss"] == pytest.approx(math.log(VOCAB), rel=0.02)
        assert means["rtd_loss"] == pytest.approx(nce, rel=0.1)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("masking", "rate", 1.0),
        ("masking", "rare", 0.5),
        ("generator", "temperature", 2.0),
        ("generator", "disallow_correct", True),
        ("generator", "kind", "transformer"),
    ],
)
def test_unknown_odds_are_refused(section: str, key: str, value: object) -> None:
    config = replace(electric(), optim=Config().optim)
    validate(config)
    changed = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    with pytest.raises(ConfigError, match=f"^{section}.{key}: "):
        validate(changed)
