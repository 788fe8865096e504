"""Options that did not help in the paper: rare tokens masked more often, and detecting corrupted sequences."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from tiny import (
    CLS,
    MASK,
    OPS,
    SEP,
    VOCAB,
    Trainer,
    make_electra,
    make_model,
    make_objective,
    ragged_rows,
    tiny_config,
)
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights
from torch import Tensor

from electra.batches.sequences import unpack
from electra.config.schema import GeneratorConfig, MaskingConfig, ObjectiveConfig
from electra.errors import ConfigError
from electra.objective.contrastive import Contrastive, left_whole
from electra.objective.rare import RareFirst, rarity
from electra.objective.rtd import ReplacedTokenDetection, discriminator_states
from electra.ops.reference.choose_masked import choose_masked
from electra.pretrain import pretrain

SPECIAL = (CLS, SEP, MASK)
KEYS = torch.arange(30_000, dtype=torch.int32) * 7919 - 12345


def one_sequence(ids: list[int], *, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence under many keys."""
    row = torch.zeros(length, dtype=torch.int32)
    row[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return row.expand(len(KEYS), -1), torch.full((len(KEYS),), len(ids), dtype=torch.int32), KEYS


def drawn_in_turn(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The probability of every ordered choice: each time in proportion to the weights of those left."""
    probabilities = {}
    for order in itertools.permutations(range(len(weights)), count):
        probability, left = 1.0, sum(weights)
        for place in order:
            probability *= weights[place] / left
            left -= weights[place]
        probabilities[order] = probability
    return probabilities


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_rare_tokens_are_chosen_in_proportion(power: float) -> None:
    counts = torch.ones(VOCAB, dtype=torch.long)
    occurrences = {10: 1, 11: 4, 12: 4, 13: 100, 14: 25}
    counts[list(occurrences)] = torch.tensor(list(occurrences.values()))
    masking = MaskingConfig(rate=0.3, rare=power)
    ids = [CLS, *occurrences, SEP, SEP, MASK]  # 9 tokens: three of five candidates are masked
    rows = one_sequence(ids, length=10)
    masked = choose_masked(*rows, masking=masking, special=SPECIAL, log_weights_V=rarity(counts, power))
    assert masked.used_BM.sum(1).eq(3).all()
    expected = drawn_in_turn([float(n) ** -power for n in occurrences.values()], 3)
    code = ((masked.positions_BM[:, :3] - 1) * torch.tensor([25, 5, 1])).sum(1)
    drawn = torch.bincount(code, minlength=125)
    wanted = torch.zeros(125, dtype=torch.double)
    for (a, b, c), probability in expected.items():
        wanted[a * 25 + b * 5 + c] = probability * len(KEYS)
    assert not drawn[wanted == 0].any(), "never a position twice, never a special token"
    common = wanted >= 5
    observed = torch.cat((drawn[common], drawn[~common].sum()[None]))
    predicted = torch.cat((wanted[common], wanted[~common].sum()[None]))
    keep = predicted > 0
    assert chisquare(observed[keep].numpy(), predicted[keep].numpy()).pvalue > 1e-3


@given(seed=st.integers(0, 10_000), rate=st.sampled_from([0.15, 0.5, 1.0]))
def test_equal_weights_give_the_usual_choice_bit_for_bit(seed: int, rate: float) -> None:
    batch = unpack(ragged_rows(16, seed=seed))
    masking = MaskingConfig(rate=rate)
    arguments = batch.ids_BL, batch.lengths_B, batch.keys_B
    usual = choose_masked(*arguments, masking=masking, special=SPECIAL)
    for weight in (0.0, -3.5):
        table = torch.full((VOCAB,), weight, dtype=torch.double)
        weighted = choose_masked(*arguments, masking=masking, special=SPECIAL, log_weights_V=table)
        assert torch.equal(usual.positions_BM, weighted.positions_BM)
        assert torch.equal(usual.used_BM, weighted.used_BM)


def test_counts_become_weights() -> None:
    found = rarity(torch.tensor([0, 1, 10, 1000]), 0.5)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.5 * math.log(10), -0.5 * math.log(1000)])


@pytest.mark.parametrize("name", ["rtd", "mlm", "replace-mlm"])
def test_rare_masking_goes_with_any_objective_and_is_not_held_out(name: str) -> None:
    counts = torch.arange(VOCAB) ** 2
    config = tiny_config(objective=ObjectiveConfig(name=name), dropout=0.0)  # type: ignore[arg-type]
    rare = replace(config, masking=MaskingConfig(rare=1.0))
    plain = make_objective(config)
    objective = make_objective(rare, frequencies=lambda: counts)
    assert type(plain) is not RareFirst and isinstance(objective, RareFirst)
    batch = unpack(ragged_rows(200))
    usual, masked = plain.choose_masked(batch), objective.choose_masked(batch)

    def mean(at: Tensor, used: Tensor) -> float:
        return float(batch.ids_BL.gather(1, at)[used].float().mean())

    assert mean(*masked) < mean(*usual) - 10, "small ids are the rare ones here"
    model = make_model(config)
    total = objective.counts(batch, masked)
    assert torch.equal(
        objective.loss(model, batch, masked, total).sums, plain.loss(model, batch, masked, total).sums
    ), "the loss is the objective's own"
    one, other = objective.evaluate(model, batch), plain.evaluate(model, batch)
    assert torch.equal(one.nll_BM, other.nll_BM) and torch.equal(one.used_BM, other.used_BM)
    sums = dict.fromkeys(objective.stats, 1.0)
    assert objective.stats == plain.stats and objective.means(sums) == plain.means(sums)
    with pytest.raises(ConfigError, match="masking.rare: needs the frequencies"):
        make_objective(rare)


CONTRASTIVE = ObjectiveConfig(contrastive_weight=3.0, contrastive_share=0.4)


def test_the_default_pays_nothing() -> None:
    config = tiny_config()
    assert type(make_objective(config)) is ReplacedTokenDetection
    assert not [name for name, _ in make_model(config).named_parameters() if name.startswith("sentence")]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_of_the_sequences_is_left_whole(share: float) -> None:
    whole = left_whole(KEYS, share)
    assert binomtest(int(whole.sum()), len(KEYS), share).pvalue > 1e-3
    assert torch.equal(left_whole(KEYS[100:200], share), whole[100:200]), "by the sequence's key alone"


@pytest.mark.parametrize("kind", ["transformer", "unigram"])
def test_the_contrastive_loss_by_hand(kind: str) -> None:
    generator = GeneratorConfig(width=0.5, kind=kind)  # type: ignore[arg-type]
    config = tiny_config(objective=CONTRASTIVE, generator=generator, dropout=0.0)
    model = make_electra(config)
    with torch.no_grad():
        model.sentence_head.weight.mul_(40)
    counts = torch.ones(VOCAB)
    objective = make_objective(config, frequencies=lambda: counts)
    plain = make_objective(replace(config, objective=ObjectiveConfig()), frequencies=lambda: counts)
    assert isinstance(objective, Contrastive) and isinstance(plain, ReplacedTokenDetection)
    batch = unpack(ragged_rows(12))
    masked = objective.choose_masked(batch)
    whole = left_whole(batch.keys_B, 0.4)
    assert 0 < whole.sum() < 12
    outcome = objective.loss(model, batch, masked, objective.counts(batch, masked))
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))

    with torch.no_grad():
        samples = plain.generator.sample(model, batch, masked, dropout=True)
        sampled_BM = samples.sampled_M.view(masked.used_BM.shape)
        corrupted_ids = batch.ids_BL.clone()
        for row, at in enumerate(masked.positions_BM.tolist()):
            for m, place in enumerate(at):
                if masked.used_BM[row, m] and not whole[row]:
                    corrupted_ids[row, place] = sampled_BM[row, m]
        hidden = discriminator_states(OPS, model, batch, corrupted_ids, dropout=False)
        logits = (hidden[:, 0].double() @ model.sentence_head.weight[0].double()).tolist()
        labels = [bool((a != b).any()) for a, b in zip(corrupted_ids, batch.ids_BL, strict=True)]
        sentence = sum(math.log1p(math.exp(z)) - z * y for z, y in zip(logits, labels, strict=True))
        scores = model.discriminator_head(hidden)
        rtd = 0.0
        for row, size in enumerate(batch.lengths_B.tolist()):
            for place in range(size):
                z, y = float(scores[row, place]), bool(corrupted_ids[row, place] != batch.ids_BL[row, place])
                rtd += math.log1p(math.exp(z)) - z * y
        tokens, used = int(batch.lengths_B.sum()), masked.used_BM.flatten()
        # Frequencies are log-probabilities already; a token that never occurs counts half, so they sum to above 1.
        logp = samples.logp_MV if kind == "transformer" else samples.logits_MV
        nll = -logp.gather(1, samples.gold_M[:, None])[:, 0][used]
        mlm = float(nll.sum())
    assert sums["sentence_sum"] == pytest.approx(sentence, rel=1e-4)
    assert sums["sentence_correct"] == sum((z > 0) == y for z, y in zip(logits, labels, strict=True))
    assert sums["sequences"] == 12 and sums["rtd_sum"] == pytest.approx(rtd, rel=1e-4)
    assert sums["mlm_sum"] == pytest.approx(mlm, rel=1e-4), "the generator learns from all sequences"
    expected = 50 * rtd / tokens + 3 * sentence / 12 + (mlm / int(used.sum()) if kind == "transformer" else 0.0)
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-4)
    means = objective.means(sums)
    assert means["loss"] == pytest.approx(expected, rel=1e-4)
    assert means["sentence_loss"] == pytest.approx(sentence / 12, rel=1e-4)
    assert means["sentence_accuracy"] == sums["sentence_correct"] / 12


def test_a_sequence_whose_samples_are_all_right_is_whole() -> None:
    """As a right sample counts as real: one sequence must not have two labels."""
    config = tiny_config(objective=CONTRASTIVE, dropout=0.0)
    model = make_electra(config)
    with torch.no_grad():
        assert model.generator_head is not None
        model.generator_head.bias[9] = 100.0
        model.sentence_head.bias.fill_(-100.0)
    rows = ragged_rows(6, full=True)
    rows[:, 1:23] = 9
    objective = make_objective(config)
    batch = unpack(rows)
    masked = objective.choose_masked(batch)
    outcome = objective.loss(model, batch, masked, objective.counts(batch, masked))
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    assert sums["replaced"] == 0 and sums["sentence_correct"] == 6 and sums["sentence_sum"] < 1e-6


def test_contrastive_gradients_and_micro_batches() -> None:
    config = tiny_config(objective=CONTRASTIVE, dropout=0.0)
    gradients = []
    for micro in (12, 4, 1):
        trainer = Trainer(config, micro=micro)
        trainer.step(ragged_rows(12), 0.0)
        gradients.append(trainer.master.gradient.clone())
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=1e-4, atol=1e-6)
    model = make_electra(config)
    objective = cast(Contrastive, make_objective(config))
    batch = unpack(ragged_rows(12))
    masked = objective.choose_masked(batch)
    counts = objective.counts(batch, masked)
    assert counts.tolist() == [float(masked.used_BM.sum()), float(batch.lengths_B.sum()), 12.0]
    with_it = objective.loss(model, batch, masked, counts).loss
    names = [name for name, _ in model.named_parameters()]
    found = dict(zip(names, torch.autograd.grad(with_it, list(model.parameters())), strict=True))
    assert found["sentence_head.weight"].any() and found["sentence_head.bias"].any()
    heavier = replace(objective, rtd=replace(objective.rtd, weights=replace(CONTRASTIVE, contrastive_weight=6.0)))
    more = dict(
        zip(
            names,
            torch.autograd.grad(heavier.loss(model, batch, masked, counts).loss, list(model.parameters())),
            strict=True,
        )
    )
    for name in names:
        changed = not torch.allclose(found[name], more[name], rtol=1e-4, atol=1e-8)
        # [CLS] reads the encoder and the embeddings, and nothing of the generator or of the detection head.
        assert changed == name.startswith(("sentence", "discriminator.", "embeddings")), name


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["masking.rare=0.5", "masking.policy=official"], "masking.rare"),
        (["masking.rare=-1"], "masking.rare"),
        (["objective.contrastive_weight=1", "objective.name=rtd-15"], "objective.contrastive_weight"),
        (["objective.contrastive_weight=1", "train.algorithm=adversarial"], "objective.contrastive_weight"),
        (["objective.contrastive_share=1", "objective.contrastive_weight=1"], "objective.contrastive_share"),
        (["generator.temperature=0"], "generator.temperature"),
    ],
)
def test_promise_20_impossible_combinations_are_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: ") as caught:
        small_config(*overrides)
    assert "\n" not in str(caught.value) and "(" in str(caught.value), "with a fix"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.mark.parametrize(
    "override",
    [
        "masking.rare=0.5",
        "objective.contrastive_weight=1",
        "generator.temperature=2",
        "generator.disallow_correct=true",
    ],
)
def test_every_option_trains_and_resumes(override: str, data: Path, tmp_path: Path) -> None:
    config = small_config(override, "train.steps=6", "optim.warmup_steps=1", "evaluate.every=3")
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    stop_at(4, config, data=data, out=tmp_path / "again")
    pretrain(config, data=data, out=tmp_path / "again")
    assert weights(tmp_path / "again") == weights(whole)
    lines = [line for line in metric_lines(whole) if line["kind"] == "train"]
    assert len(lines) == 6
    if "contrastive" in override:
        assert all(0 < line["train/sentence_loss"] < 2 for line in lines)
    if "disallow" in override:
        last = [line for line in metric_lines(whole) if line["kind"] == "eval"][-1]
        assert last["eval/sampled_accuracy"] == 0.0
