"""Generators without a network, and how samples are drawn: exact frequencies, temperature, forbidden tokens."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import (
    CLS,
    MASK,
    OPS,
    PAD,
    SEP,
    SPECIALS,
    UNK,
    VOCAB,
    make_electra,
    make_model,
    make_objective,
    ragged_rows,
    tiny_config,
)
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, GeneratorConfig
from electra.errors import ConfigError
from electra.objective.generators import FrequencyGenerator, MaskedGenerator, Samples, alias_tables, draw_alias
from electra.objective.registry import Resources, build_generator
from electra.objective.rtd import ReplacedTokenDetection
from electra.ops.reference.linear_cross_entropy import pad_vocabulary, sample
from electra.pretrain import pretrain
from electra.shards import dataset
from electra.shards.dataset import open_data

DRAWS = 200_000
KEYS = torch.arange(DRAWS, dtype=torch.int32) * 48271 - 99


def implied(keep_V: Tensor, alias_V: Tensor) -> Tensor:
    """The distribution that the tables stand for."""
    own = keep_V.double()
    return own.index_add(0, alias_V, 1 - own) / len(own)


def zipf(count: int, *, seed: int = 0) -> Tensor:
    """Counts by Zipf's law, in any order, some of them 0."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return (1e7 / (torch.arange(count) + 2.7)).floor()[order] * (order % 7 != 0)


def fits(drawn: Tensor, expected_V: Tensor) -> float:
    """The chi-square test's p, tokens below five expected draws taken together."""
    counts = torch.bincount(drawn, minlength=len(expected_V)).double()
    wanted = expected_V.double() / expected_V.double().sum() * len(drawn)
    assert len(counts) == len(wanted) and not counts[wanted == 0].any(), "nothing that cannot be drawn"
    common = wanted >= 5
    observed, want = counts[common], wanted[common]
    if wanted[~common].sum() > 0:
        observed = torch.cat((observed, counts[~common].sum()[None]))
        want = torch.cat((want, wanted[~common].sum()[None]))
    return (
        float(chisquare(observed.numpy(), (want * (observed.sum() / want.sum())).numpy()).pvalue)
        if len(want) > 1
        else 1.0
    )


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60).filter(any))
def test_alias_tables_stand_for_the_weights(weights: list[int]) -> None:
    keep, alias = alias_tables(torch.tensor(weights))
    exact = torch.tensor(weights).double() / sum(weights)
    torch.testing.assert_close(implied(keep, alias), exact, rtol=0, atol=1e-6)
    assert not keep[exact == 0].any() and not (exact[alias[keep < 1]] == 0).any(), "0 stays 0 exactly"


def test_alias_tables_of_a_whole_vocabulary() -> None:
    weights = zipf(30522)
    best = math.inf
    for _ in range(3):
        begun = time.thread_time()  # of this thread alone: a busy machine takes longer and computes no more
        keep, alias = alias_tables(weights)
        best = min(best, time.thread_time() - begun)
    assert best < 0.25, "it takes a twentieth of a second"
    exact = weights.double() / weights.double().sum()
    assert float((implied(keep, alias) - exact).abs().max()) < 1e-9
    drawn = draw_alias(keep, alias, KEYS)
    assert fits(drawn, weights) > 1e-3
    assert drawn.dtype == torch.int64


@pytest.mark.parametrize("weights", [[1.0], [0.0, 1.0], [1.0, 1.0], [1e-9, 1.0, 1e9], [0.0, 3.0, 0.0, 1.0]])
def test_small_and_uneven_tables(weights: list[float]) -> None:
    keep, alias = alias_tables(torch.tensor(weights, dtype=torch.float64))
    assert fits(draw_alias(keep, alias, KEYS), torch.tensor(weights, dtype=torch.float64)) > 1e-3


def config_of(kind: str, **values: object) -> Config:
    return tiny_config(generator=GeneratorConfig(kind=kind, **values), dropout=0.0)  # type: ignore[arg-type]


def text_counts() -> Tensor:
    """Made-up counts in which special tokens are frequent and a third of the others never occur."""
    counts = torch.arange(VOCAB).remainder(3) * torch.arange(VOCAB)
    counts[[PAD, UNK, CLS, SEP, MASK]] = torch.tensor([900, 40, 800, 1600, 700])
    return counts


RESOURCES = Resources(SPECIALS, OPS, text_counts)


def samples_of(config: Config, batch: Sequences, masked: MaskedPositions) -> Samples:
    return build_generator(config, RESOURCES).sample(make_electra(config), batch, masked, dropout=False)


def many_masked(token: int) -> tuple[Sequences, MaskedPositions]:
    """Many masked positions, all at one and the same token."""
    rows = ragged_rows(DRAWS // 20, full=True)
    rows[:, 2:22] = token
    batch = unpack(rows)
    positions = torch.arange(2, 22).expand(len(rows), -1)
    return batch, MaskedPositions(positions, torch.ones_like(positions, dtype=torch.bool))


def without_specials(weights: Tensor) -> Tensor:
    weights = weights.double().clone()
    weights[[PAD, CLS, SEP, MASK]] = 0
    return weights


@pytest.mark.parametrize(
    ("kind", "temperature"), [("transformer", 1.0), ("transformer", 2.0), ("two-tower", 1.0), ("unigram", 1.0)]
)
def test_logits_are_returned_where_they_are_asked_for(kind: str, temperature: float) -> None:
    config = config_of(kind, width=0.5, temperature=temperature)
    model, batch = make_electra(config), unpack(ragged_rows(4))
    masked = make_objective(config, frequencies=text_counts).choose_masked(batch)
    generator = build_generator(config, RESOURCES)
    asked = generator.sample(model, batch, masked, dropout=False)
    without = generator.sample(model, batch, masked, dropout=False, logits=False)
    assert torch.equal(without.nll_M, asked.nll_M) and torch.equal(without.sampled_M, asked.sampled_M)
    assert torch.equal(asked.best_M, asked.logp_MV.argmax(1)) and without.logits_MV is None
    for read in (lambda: without.logp_MV, lambda: without.best_M):
        with pytest.raises(AssertionError):
            read()


@pytest.mark.parametrize("kind", ["unigram", "uniform"])
@pytest.mark.parametrize(
    ("temperature", "disallow"), [(1.0, False), (2.0, False), (0.5, False), (1.0, True), (3.0, True)]
)
def test_frequencies_are_drawn_exactly(kind: str, temperature: float, disallow: bool) -> None:
    gold = VOCAB - 1  # the likeliest token of the made-up counts
    config = config_of(kind, temperature=temperature, disallow_correct=disallow)
    expected = without_specials(text_counts() if kind == "unigram" else torch.ones(VOCAB))
    drawn = samples_of(config, *many_masked(gold)).sampled_M
    assert expected[gold] == expected.max()
    expected = torch.where(expected > 0, expected ** (1 / temperature), 0.0)
    if disallow:
        expected[gold] = 0
    assert fits(drawn, expected) > 1e-3
    assert not set(drawn.unique().tolist()) & {PAD, CLS, SEP, MASK} and UNK in drawn.unique().tolist()


@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0, 2.0, 1000.0])
@pytest.mark.parametrize("disallow", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1.0, 200.0])
def test_temperature_and_forbidden_tokens_are_exact(temperature: float, disallow: bool, spread: float) -> None:
    """From flat distributions to certain ones, over a vocabulary that does not fill its blocks."""
    logits = torch.randn(200, generator=torch.Generator().manual_seed(3)) * spread
    _, padded = pad_vocabulary(torch.zeros(200, 1), logits)
    count = 20_000
    best = int(logits.argmax())
    forbidden = torch.full((count,), best) if disallow else None
    rows = padded.log_softmax(0).expand(count, -1)
    drawn = sample(rows, KEYS[:count], temperature=temperature, forbidden_M=forbidden)
    scores = logits.double() / temperature
    if disallow:
        scores[best] = -math.inf
    expected = scores.softmax(0)
    expected[expected < 1e-30] = 0
    assert fits(drawn, expected) > 1e-3


def test_the_networks_samples_follow_its_temperature() -> None:
    """The options reach the generator: the drawn tokens fit its own distribution, sharpened or flattened."""
    batch, masked = many_masked(9)
    few = batch.part(torch.zeros(1000, dtype=torch.int64))
    few = few._replace(keys_B=batch.keys_B[:1000])
    masked = MaskedPositions(masked.positions_BM[:1000], masked.used_BM[:1000])
    for temperature, disallow in ((1.0, False), (2.0, False), (0.5, True)):
        config = config_of("transformer", width=0.5, temperature=temperature, disallow_correct=disallow)
        model = make_electra(config)
        with torch.no_grad():
            assert model.generator_head is not None
            model.generator_head.bias.normal_(std=1.5, generator=torch.Generator().manual_seed(0))
            model.generator_head.bias[9] = 4.0
        generator = cast(MaskedGenerator, build_generator(config, RESOURCES._replace(frequencies=None)))
        # Masks differ from row to row, so all rows keep the original sequence.
        generator = replace(generator, masking=replace(config.masking, masked_share=0.0))
        samples = generator.sample(model, few, masked, dropout=False)
        logp = samples.logp_MV.view(1000, 20, -1)[0, :, :VOCAB].detach().double()
        assert torch.allclose(samples.logp_MV.view(1000, 20, -1)[7, 3], samples.logp_MV.view(1000, 20, -1)[0, 3])
        scores = logp / temperature
        if disallow:
            scores[:, 9] = -math.inf
        expected = scores.softmax(1).mean(0)
        drawn = samples.sampled_M
        assert fits(drawn, expected) > 1e-3
        assert bool((drawn == 9).any()) != disallow


def test_figures_of_a_generator_that_does_not_learn() -> None:
    """Its cross-entropy is logged, finite for unseen tokens too, and has no part in the loss."""
    for kind in ("unigram", "uniform"):
        config = config_of(kind)
        model, objective = make_model(config), make_objective(config, frequencies=text_counts)
        assert isinstance(objective, ReplacedTokenDetection) and not objective.generator.learns
        assert not [name for name, _ in model.named_parameters() if name.startswith("generator")]
        batch = unpack(ragged_rows(40))
        masked = objective.choose_masked(batch)
        outcome = objective.loss(model, batch, masked, objective.counts(batch, masked))
        means = objective.means(dict(zip(objective.stats, outcome.sums.tolist(), strict=True)))
        gold = batch.ids_BL.gather(1, masked.positions_BM)[masked.used_BM].long()
        weights = without_specials(text_counts() if kind == "unigram" else torch.ones(VOCAB))
        nll = -(weights[gold].clamp(min=0.5) / weights.sum()).log()
        assert kind == "uniform" or (weights[gold] == 0).any()
        assert means["mlm_loss"] == pytest.approx(nll.mean().item(), rel=1e-5)
        assert means["loss"] == pytest.approx(50 * means["rtd_loss"]) == pytest.approx(outcome.loss.item(), rel=1e-5)
        found = objective.evaluate(model, batch)
        assert torch.isfinite(found.nll_BM).all() and found.corrupted_ids_BL is not None
        assert means["replaced_rate"] == pytest.approx(
            float((found.corrupted_ids_BL != batch.ids_BL).sum() / batch.lengths_B.sum())
        ), "the same samples with and without dropout"
        outcome.loss.backward()
        assert all(p.grad is not None for p in model.parameters())


def test_tables_are_made_once_on_the_device() -> None:
    """Nothing is copied in a step: the tables are on the device that the weights are on."""
    frequencies = build_generator(config_of("unigram"), RESOURCES._replace(device=torch.device("meta")))
    assert isinstance(frequencies, FrequencyGenerator)
    assert {t.device.type for t in (frequencies.keep_V, frequencies.alias_V, frequencies.logp_V)} == {"meta"}
    with pytest.raises(ConfigError, match="generator.kind: needs the frequencies"):
        build_generator(config_of("unigram"), RESOURCES._replace(frequencies=None))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.mark.parametrize("chunk", [7, 100, 1 << 22])
def test_tokens_are_counted(data: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "COUNTED", chunk)
    prepared = open_data(data)
    counts = prepared.train.counts()
    tokens = prepared.train.slice(0, prepared.train.n_tokens)
    assert counts.dtype == np.int64 and counts.sum() == prepared.train.n_tokens
    assert np.array_equal(counts, np.bincount(tokens, minlength=prepared.vocab_size))


@pytest.mark.parametrize("most", [1, 300, 2000, 1 << 24])
def test_a_part_of_the_tokens_is_counted(data: Path, most: int) -> None:
    """About as many as asked for, from the whole of the text; all of them where there are not more."""
    prepared = open_data(data)
    whole, part = prepared.train.counts(), prepared.train.counts(most=most)
    assert (part <= whole).all() and part.sum() <= most + len(prepared.train._names) * dataset.SPREAD
    assert part.sum() >= min(most, prepared.train.n_tokens) // 2
    if most >= prepared.train.n_tokens:
        assert np.array_equal(part, whole)


@pytest.mark.parametrize("kind", ["unigram", "uniform", "two-tower"])
def test_every_generator_trains_and_resumes(kind: str, data: Path, tmp_path: Path) -> None:
    config = small_config(f"generator.kind={kind}", "train.steps=6", "optim.warmup_steps=1", "evaluate.every=3")
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    stop_at(4, config, data=data, out=tmp_path / "again")
    pretrain(config, data=data, out=tmp_path / "again")
    assert weights(tmp_path / "again") == weights(whole)
    last = [line for line in metric_lines(whole) if line["kind"] == "eval"][-1]
    assert 0 < last["eval/mlm_loss"] < 20 and last["eval/replaced_rate"] > 0.05
    if kind == "uniform":
        assert last["eval/mlm_loss"] == pytest.approx(math.log(200 - 4), abs=1e-3)
