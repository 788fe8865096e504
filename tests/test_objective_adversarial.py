"""The adversarial generator: REINFORCE against exact enumeration over five tokens, routing, baseline, figures."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from test_objective_rtd import livelier
from tiny import OPS, SPECIALS, Trainer, layer_norm, make_electra, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.layout import Specials
from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, ObjectiveConfig, OptimConfig, TrainConfig
from electra.model.electra import Electra
from electra.objective.adversarial import Adversarial
from electra.objective.generators import Generator, Samples
from electra.objective.registry import Resources, build_objective

ADVERSARIAL = TrainConfig(algorithm="adversarial")
FIVE = 5  # the vocabulary: 0 is every special token
ONE_SPECIAL = Specials(pad=0, cls=0, sep=0, mask=0)
IDS = [0, 1, 3, 2, 4, 1, 3, 0]
GENERATORS = [
    GeneratorConfig(width=0.5),
    GeneratorConfig(width=0.5, temperature=2.0),
    GeneratorConfig(width=0.5, disallow_correct=True),
    GeneratorConfig(width=0.5, tying="none"),
]


def adversarial_config(*, mlm: float = 1.0, rtd: float = 50.0, **parts: object) -> Config:
    weights = ObjectiveConfig(mlm_weight=mlm, rtd_weight=rtd)
    return tiny_config(objective=weights, train=ADVERSARIAL, **parts)


def made(config: Config, specials: Specials = SPECIALS) -> tuple[Electra, Adversarial]:
    objective = build_objective(config, Resources(specials, OPS))
    assert isinstance(objective, Adversarial)
    return make_electra(config), objective


def five_tokens(generator: GeneratorConfig) -> tuple[Electra, Adversarial]:
    """Networks over five tokens with large weights, the generator's loss alone, every masked position [MASK]."""
    config = adversarial_config(
        rtd=0.0, dropout=0.0, generator=generator, masking=MaskingConfig(rate=0.3, masked_share=1.0)
    )
    model, objective = made(replace(config, model=replace(config.model, vocab_size=FIVE)), ONE_SPECIAL)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
        assert model.generator_head is not None
        model.generator_head.bias.copy_(torch.tensor([0.3, -0.5, 0.8, 0.1, -0.2]))
    return model, objective


def sequences(count: int, *, places: tuple[int, ...]) -> tuple[Sequences, MaskedPositions]:
    """One sequence several times, with keys of their own, masked at these positions."""
    rows = torch.zeros(count, len(IDS) + 3, dtype=torch.int32)
    rows[:, : len(IDS)] = torch.tensor(IDS)
    rows[:, -3], rows[:, -2] = len(IDS), len(IDS)
    rows[:, -1] = torch.arange(count, dtype=torch.int32) * 7919 + 13
    return unpack(rows), MaskedPositions(
        torch.tensor([places] * count), torch.ones(count, len(places), dtype=torch.bool)
    )


@dataclass(frozen=True)
class FixedSamples:
    """A generator whose samples are chosen by the test instead of drawn."""

    generator: Generator
    tokens: tuple[int, ...]
    learns = True

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        samples = self.generator.sample(model, batch, masked, dropout=dropout, logits=logits)
        return samples._replace(sampled_M=torch.tensor(self.tokens))


def with_samples(objective: Adversarial, tokens: tuple[int, ...]) -> Adversarial:
    """The objective, with these samples at the masked positions."""
    return replace(objective, rtd=replace(objective.rtd, generator=FixedSamples(objective.rtd.generator, tokens)))


def gradient(model: Electra, loss: Tensor) -> Tensor:
    """The gradient of everything that the generator reads its distribution from, in one vector."""
    parameters = [*model.generator_embeddings.parameters()]
    assert model.generator is not None and model.generator_head is not None
    parameters += [*model.generator.parameters(), *model.generator_head.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(found, parameters, strict=True)]
    )


def probabilities(model: Electra, places: tuple[int, ...], generator: GeneratorConfig) -> Tensor:
    """(M, 5) probabilities of the samples, by the plain definition."""
    ids = torch.tensor([IDS])
    masked_ids = ids.clone()
    masked_ids[0, list(places)] = 0
    assert model.generator is not None and model.generator_head is not None
    hidden = model.generator(model.generator_embeddings(masked_ids, torch.zeros_like(ids), None), None)[0, list(places)]
    head = model.generator_head
    x = layer_norm(head.norm, F.gelu(head.dense(hidden)))
    logits = (x @ model.generator_embeddings.token.weight.T + head.bias) / generator.temperature
    if generator.disallow_correct:
        logits = logits.clone()
        for row, place in enumerate(places):
            logits[row, IDS[place]] = -math.inf
    return logits.softmax(1)


def rewards(model: Electra, places: tuple[int, ...], samples: tuple[int, ...]) -> list[float]:
    """The discriminator's loss on each sampled token."""
    corrupted_ids = list(IDS)
    for place, token in zip(places, samples, strict=True):
        corrupted_ids[place] = token
    with torch.no_grad():
        ids = torch.tensor([corrupted_ids])
        hidden = model.discriminator(model.embed(ids, torch.zeros_like(ids), None), None)
        scores = model.discriminator_head(hidden)[0]
    replaced = [1 / (1 + math.exp(-float(scores[place]))) for place in places]
    return [
        -math.log(p if token != IDS[place] else 1 - p)
        for p, token, place in zip(replaced, samples, places, strict=True)
    ]


@pytest.mark.parametrize("places", [(3,), (2, 5)], ids=["one masked", "two masked"])
@pytest.mark.parametrize("generator", GENERATORS, ids=lambda g: f"{g.temperature:g} {g.disallow_correct} {g.tying}")
def test_over_all_samples_the_gradient_is_that_of_the_expected_reward(
    generator: GeneratorConfig, places: tuple[int, ...]
) -> None:
    """Each sample's gradient, weighed with its probability, against the expectation written out and differentiated."""
    model, objective = five_tokens(generator)
    batch, masked = sequences(1, places=places)
    p = probabilities(model, places, generator)
    expected, weighed, spread = torch.zeros(()), torch.zeros(()), set()
    for samples in itertools.product(range(FIVE), repeat=len(places)):
        of_sample = torch.stack([p[row, token] for row, token in enumerate(samples)])
        if float(of_sample.detach().prod()) == 0:
            continue
        found = rewards(model, places, samples)
        spread.update(round(value, 3) for value in found)
        for row, reward in enumerate(found):  # to this position, the others' probabilities are constants
            others = math.prod(float(one) for number, one in enumerate(of_sample.detach()) if number != row)
            expected = expected + of_sample[row] * others * reward
        fixed = with_samples(objective, samples)
        loss = fixed.loss(model, batch, masked, fixed.counts(batch, masked)).loss
        weighed = weighed + float(of_sample.detach().prod()) * gradient(model, loss)
    exact = -gradient(model, expected) / len(places)  # the loss falls where the reward rises, a mean over the positions
    assert exact.norm() > 0.01 and len(spread) >= 4
    torch.testing.assert_close(weighed, exact, rtol=1e-3, atol=2e-6 * float(exact.abs().max()) + 1e-6)


def test_the_mean_of_many_sampled_gradients_is_the_exact_one() -> None:
    """10,000 draws in 50 parts: every component within five of its standard errors, and most within two."""
    generator, places = GENERATORS[0], (3,)
    model, objective = five_tokens(generator)
    p = probabilities(model, places, generator)
    expected = sum((p[0, token] * rewards(model, places, (token,))[0] for token in range(FIVE)), torch.zeros(()))
    exact = -gradient(model, expected)
    batch, masked = sequences(10_000, places=places)
    parts = []
    for start in range(0, 10_000, 200):
        part = slice(start, start + 200)
        few = batch.part(part)
        at = MaskedPositions(masked.positions_BM[part], masked.used_BM[part])
        parts.append(gradient(model, objective.loss(model, few, at, objective.counts(few, at)).loss))
    means = torch.stack(parts)
    error = means.std(0) / len(parts) ** 0.5
    moved = error > 1e-5
    off = ((means.mean(0) - exact).abs() / error)[moved]
    assert moved.sum() > 100 and float(off.max()) < 5 and float((off < 2).float().mean()) > 0.8
    assert (exact.abs()[moved] > 3 * error[moved]).any(), "the draws are many enough to show a direction"


@pytest.mark.parametrize("logit", [-4.0, 3.0])
def test_the_baseline_does_not_bias_the_gradient(logit: float) -> None:
    model, objective = five_tokens(GENERATORS[0])
    batch, masked = sequences(1, places=(3,))
    p = probabilities(model, (3,), GENERATORS[0]).detach()[0]

    def weighed() -> tuple[Tensor, Tensor]:
        parts = []
        for token in range(FIVE):
            fixed = with_samples(objective, (token,))
            parts.append(gradient(model, fixed.loss(model, batch, masked, fixed.counts(batch, masked)).loss))
        return sum((q * part for q, part in zip(p, parts, strict=True)), torch.zeros(())), parts[0]

    before, one = weighed()
    with torch.no_grad():
        model.baseline_head.bias.fill_(logit)
    after, other = weighed()
    assert (one - other).norm() > 0.1 * one.norm(), "a single sample's gradient does change"
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5 * float(before.abs().max()) + 1e-6)


def gradients(config: Config) -> dict[str, Tensor]:
    model, objective = made(config)
    livelier(model)
    batch = unpack(ragged_rows(8))
    masked = objective.choose_masked(batch)
    objective.loss(model, batch, masked, objective.counts(batch, masked)).loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(one is not None for one in found.values()), "every parameter takes part in the loss"
    return cast(dict[str, Tensor], found)


def test_which_loss_reaches_what() -> None:
    own = GeneratorConfig(width=0.5, tying="none")
    only_baseline = gradients(adversarial_config(mlm=0.0, rtd=0.0, generator=own))
    assert {name for name, g in only_baseline.items() if g.any()} == {"baseline_head.weight", "baseline_head.bias"}
    discriminator = gradients(adversarial_config(mlm=0.0, rtd=50.0, generator=own))
    generator = gradients(adversarial_config(mlm=1.0, rtd=0.0, generator=own))
    for name in only_baseline:
        if name.startswith("baseline"):
            assert torch.equal(discriminator[name], generator[name]), "the baseline learns the same in any company"
        elif name.startswith("generator"):
            assert generator[name].any() and not discriminator[name].any(), name
        else:
            assert discriminator[name].any() and not generator[name].any(), name
    shared = gradients(adversarial_config())
    apart = gradients(adversarial_config(mlm=0.0)), gradients(adversarial_config(rtd=0.0))
    table = "embeddings.token.weight"
    assert apart[0][table].any() and apart[1][table].any()
    torch.testing.assert_close(shared[table], apart[0][table] + apart[1][table], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
def test_promise_07_micro_batches_do_not_change_the_maths(policy: str) -> None:
    masking = MaskingConfig(policy=policy)  # type: ignore[arg-type]
    rows, found, sums = ragged_rows(8), [], []
    for micro in (8, 4, 3, 1):
        trainer = Trainer(adversarial_config(masking=masking, optim=OptimConfig(clip=1e9)), micro=micro)
        trainer.step(rows, 0.0)
        found.append(trainer.master.gradient.clone())
        sums.append(trainer.step.read())
    for one, totals in zip(found[1:], sums[1:], strict=True):
        assert (one - found[0]).norm() <= 2e-6 * found[0].norm()
        assert totals == pytest.approx(sums[0], rel=1e-6)


def test_the_figures_are_what_plain_arithmetic_says() -> None:
    model, objective = made(adversarial_config(dropout=0.0, mlm=2.0))
    livelier(model)
    batch = unpack(ragged_rows(6))
    masked = objective.choose_masked(batch)
    outcome = objective.loss(model, batch, masked, objective.counts(batch, masked))
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    with torch.no_grad():
        samples = objective.rtd.generator.sample(model, batch, masked, dropout=False)
        detected = objective.rtd.evaluate(model, batch)
    assert detected.logits_BL is not None and detected.corrupted_ids_BL is not None and samples.hidden_MD is not None
    reward, cross, entropy, climb, number = 0.0, 0.0, 0.0, 0.0, -1
    for row, (places, flags) in enumerate(zip(masked.positions_BM.tolist(), masked.used_BM.tolist(), strict=True)):
        for place, used in zip(places, flags, strict=True):
            number += 1
            if not used:
                continue
            fake = bool(detected.corrupted_ids_BL[row, place] != batch.ids_BL[row, place])
            z = float(detected.logits_BL[row, place])
            truth = 1 / (1 + math.exp(-z if fake else z))
            q = float(torch.sigmoid(model.baseline_head(samples.hidden_MD[number])).detach()[0])
            reward -= math.log(truth)
            cross -= truth * math.log(q) + (1 - truth) * math.log(1 - q)
            entropy += float(torch.distributions.Categorical(logits=samples.logp_MV[number]).entropy())
            sample = int(samples.sampled_M[number])
            climb -= (math.log(q) - math.log(truth)) * float(samples.logp_MV[number, sample])
    count = int(masked.used_BM.sum())
    assert sums["reward_sum"] == pytest.approx(reward, rel=1e-4)
    assert sums["baseline_sum"] == pytest.approx(cross, rel=1e-4)
    assert sums["entropy_sum"] == pytest.approx(entropy, rel=1e-4)
    rtd = sums["rtd_sum"] / sums["tokens"]
    assert outcome.loss.item() == pytest.approx(50 * rtd + (2 * climb + cross) / count, rel=1e-4)
    means = objective.means(sums)
    expected = {"reward": reward / count, "baseline_loss": cross / count, "entropy": entropy / count, "loss": 50 * rtd}
    assert {name: means[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert means["mlm_loss"] == pytest.approx(sums["mlm_sum"] / count) and means["rtd_loss"] == pytest.approx(rtd)


def test_a_fresh_generator_has_the_entropy_of_its_vocabulary() -> None:
    model, objective = made(adversarial_config(dropout=0.0))
    batch = unpack(ragged_rows(4))
    masked = objective.choose_masked(batch)
    sums = objective.loss(model, batch, masked, objective.counts(batch, masked)).sums.tolist()
    means = objective.means(dict(zip(objective.stats, sums, strict=True)))
    assert means["entropy"] == pytest.approx(math.log(150), abs=0.02)
    assert means["baseline_loss"] == pytest.approx(math.log(2), abs=0.02)


def test_the_generator_learns_to_mislead_a_discriminator_that_stands_still() -> None:
    generator, optim = GeneratorConfig(width=0.5, tying="none"), OptimConfig(lr=3e-3, warmup_steps=0, weight_decay=0.0)
    trainer = Trainer(adversarial_config(rtd=0.0, dropout=0.0, generator=generator, optim=optim), micro=16)
    model = cast(Electra, trainer.model)
    with torch.no_grad():
        model.discriminator.layers[0].attention.qkv.weight.mul_(10)
        model.embeddings.token.weight.mul_(40)
        model.discriminator_head.dense.weight.mul_(10)
        model.discriminator_head.score.weight.mul_(5)
    rows, lines = ragged_rows(16, full=True), []
    for seed in range(60):
        rows[:, -1] = torch.from_numpy(ragged_rows(16, seed=seed + 1).numpy()[:, -1])
        trainer.step(rows, 3e-3)
        lines.append(trainer.objective.means(trainer.step.read()))
    first, last = lines[:10], lines[-10:]
    assert sum(line["reward"] for line in last) > 1.1 * sum(line["reward"] for line in first)
    assert sum(line["entropy"] for line in last) < sum(line["entropy"] for line in first)
