"""How networks start, and dropout by address: its share, scale, places and independence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest
import torch
from scipy.stats import binomtest, chisquare
from tiny import SPECIALS, VOCAB, ragged_rows, tiny_config
from torch import nn

from electra.batches.sequences import unpack
from electra.config.schema import Config, GeneratorConfig, ObjectiveConfig
from electra.kernels.host import library
from electra.model import layers
from electra.model.dropout import dropout, keep_mask
from electra.model.electra import Electra, build_model
from electra.model.encoder import Encoder, generator_shape
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import Attention, Norm, attend
from electra.objective.table import build_objective

KEYS = torch.arange(200, dtype=torch.int32) * 7919


def test_weights_start_as_the_official_ones() -> None:
    model = cast(Electra, build_model(replace(Config(), model=replace(Config().model, layers=1, vocab_size=5000))))
    glorot = {id(m.project) for m in model.modules() if isinstance(m, Encoder)}
    glorot |= {id(m.score) for m in model.modules() if isinstance(m, DetectionHead)}
    assert len(glorot) == 3, "the projections of both encoders and the detection score"
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = module.weight.detach()
            if id(module) in glorot:
                bound = math.sqrt(6 / sum(weight.shape))
                assert 0.98 * bound < float(weight.abs().max()) <= bound or weight.numel() < 500, name
                assert float(weight.abs().max()) <= bound
                assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1), name
            else:
                # A normal of 0.02 cut at two standard deviations has 0.88 of its spread.
                assert float(weight.abs().max()) <= 0.04, name
                spread = 0.02 * 0.8796
                assert float(weight.std()) == pytest.approx(spread, rel=0.02 + 3 / math.sqrt(weight.numel())), name
        if isinstance(module, nn.Linear):
            assert not module.bias.any(), name
        if isinstance(module, Norm):
            assert (module.weight == 1).all() and not module.bias.any(), name
    assert not model.generator_head.bias.any()


@pytest.mark.parametrize(
    ("name", "figure", "halves", "known"),
    [
        ("rtd", "rtd_loss", math.log(2), 0.3785),  # 1/8 replaced: -ln 0.15 each, -ln 0.85 for the others
        ("rtd-15", "rtd_loss", math.log(2), 0.040),  # uniform samples: 1 of 150 happens to be the original
        ("all-tokens-mlm", "main_loss", 1.31, 1.00),  # 1/8 replaced: ln 150 each, and -ln of the gate's 0.85 or 0.15
    ],
)
def test_the_head_can_start_at_the_base_rate(name: str, figure: str, halves: float, known: float) -> None:
    """At one half by default, as the official one; where asked, at the rate of replaced tokens among those judged."""
    for start, expected in ((False, halves), (True, known)):
        weights = ObjectiveConfig(name=name, base_rate_start=start)  # type: ignore[arg-type]
        config = tiny_config(objective=weights)
        model = cast(Electra, build_model(config))
        objective = build_objective(config, SPECIALS)
        batch = unpack(ragged_rows(64, full=True))
        slots = objective.plan(batch)
        sums = objective.loss(model, batch, slots, objective.counts(batch, slots)).sums
        means = objective.means(dict(zip(objective.stats, sums.tolist(), strict=True)))
        assert means[figure] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("name", ["rtd", "mlm", "replace-mlm", "all-tokens-mlm"])
def test_heads_can_start_at_the_corpus_frequencies(name: str) -> None:
    """Every head over the vocabulary: a token's first chance is its share of the text, a stranger's half a sighting."""
    config = tiny_config(objective=ObjectiveConfig(name=name, unigram_start=True))  # type: ignore[arg-type]
    counts = torch.arange(config.model.vocab_size) % 7 * 30
    model = build_model(config, lambda: counts)
    heads = [module for module in model.modules() if isinstance(module, MaskedHead)]
    assert len(heads) == (1 if name in ("rtd", "mlm") else 2)
    expected = (counts + 0.5) / float((counts + 0.5).sum())
    for head in heads:
        torch.testing.assert_close(head.bias.detach().softmax(0), expected)
    assert all(not head.bias.any() for head in build_model(config).modules() if isinstance(head, MaskedHead))
    even = build_model(tiny_config(objective=ObjectiveConfig(name=name)), lambda: counts)  # type: ignore[arg-type]
    assert all(not head.bias.any() for head in even.modules() if isinstance(head, MaskedHead))


def test_a_seed_is_a_network() -> None:
    one, same, other = (build_model(replace(tiny_config(), seed=seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embeddings.token.weight"], other["embeddings.token.weight"])


def test_generator_sizes() -> None:
    """Of the published models: small 64, base 256, large 256 units; heads of 64."""
    model = Config().model
    assert (
        generator_shape(model, GeneratorConfig()).width == 64 and generator_shape(model, GeneratorConfig()).heads == 1
    )
    base = replace(model, width=768, heads=12, ffn=3072, embedding=768)
    shape = generator_shape(base, GeneratorConfig(width=1 / 3))
    assert (shape.width, shape.heads, shape.ffn, shape.layers, shape.embedding) == (256, 4, 1024, 12, 768)
    assert generator_shape(base, GeneratorConfig(depth=0.5)).layers == 6


def test_defect_parts_share_all_embeddings_and_nothing_else() -> None:
    """Elsewhere only the token table was shared, or the generator was as wide as the discriminator."""
    model = cast(Electra, build_model(tiny_config()))
    assert model.generator_embeddings is model.embeddings
    shared = {id(p) for p in model.generator.parameters()} & {id(p) for p in model.discriminator.parameters()}
    assert not shared
    baseline = build_model(tiny_config(objective=ObjectiveConfig(name="mlm")))
    assert {name.partition(".")[0] for name, _ in baseline.named_parameters()} == {"embeddings", "encoder", "head"}


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(rate: float) -> None:
    x = torch.ones(200, 7, 33)
    y = dropout(x, rate, KEYS)
    kept = y != 0
    assert torch.allclose(y[kept], torch.tensor(1 / (1 - rate)))
    assert binomtest(int(kept.sum()), kept.numel(), 1 - rate).pvalue > 1e-3
    # No sample, no place is favoured.
    assert chisquare(kept.flatten(1).sum(1).numpy()).pvalue > 1e-3
    by_place = kept.float().mean(0).flatten()
    assert float((by_place - (1 - rate)).abs().max()) < 5 * math.sqrt(rate * (1 - rate) / 200)


def test_no_dropout_without_keys_or_rate() -> None:
    x = torch.randn(3, 5)
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, KEYS[:3]) is x


def test_dropout_depends_on_the_samples_key_only() -> None:
    x = torch.ones(6, 40)
    whole = dropout(x, 0.5, KEYS[:6])
    for row in range(6):
        assert torch.equal(dropout(x[:1], 0.5, KEYS[row : row + 1])[0], whole[row])
    assert len({tuple(row.tolist()) for row in whole}) == 6
    assert torch.equal(keep_mask(KEYS[:6], 3, 39, 0.5)[..., :20], keep_mask(KEYS[:6], 3, 40, 0.5)[..., :20])
    assert torch.equal(keep_mask(KEYS[:6], 3, 40, 0.5), keep_mask(KEYS[:6], 9, 40, 0.5)[:, :3])


def test_gradients_pass_where_activations_do() -> None:
    x = torch.randn(4, 50, requires_grad=True)
    y = dropout(x, 0.3, KEYS[:4])
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0)


def test_every_place_in_the_network_drops_a_pattern_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pattern used twice would couple layers, or generator and discriminator."""
    config = tiny_config(dropout=0.5)
    seen: list[tuple[torch.Size, torch.Tensor]] = []

    def watch(x: torch.Tensor, rate: float, keys_B: torch.Tensor | None) -> torch.Tensor:
        assert keys_B is not None and rate == 0.5
        seen.append((x.shape, keys_B))
        return dropout(x, rate, keys_B)

    monkeypatch.setattr(layers, "dropout", watch)
    monkeypatch.setattr(library, "_wanted", False)
    model, objective = build_model(config), build_objective(config, SPECIALS)
    batch = unpack(ragged_rows(4))
    slots = objective.plan(batch)
    objective.loss(model, batch, slots, objective.counts(batch, slots))
    # Generator and discriminator: embeddings, then probabilities, attention and feed-forward of two layers.
    assert len(seen) == 2 * (1 + 2 * 3)
    assert sum(shape[-1] == shape[-2] == 24 for shape, _ in seen) == 4, "attention probabilities of four layers"
    keys = torch.stack([keys for _, keys in seen])
    assert len(set(keys.flatten().tolist())) == keys.numel()


def test_attention_with_dropout_is_attention_in_expectation() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator) for _ in range(3))
    bias = torch.zeros(1, 1, 1, 6)
    bias[..., 4:] = torch.finfo(torch.float32).min
    exact = attend(q, k, v, bias, 0.5, None)
    scores = q.double() @ k.double().transpose(-1, -2) / 2
    expected = scores[..., :4].softmax(-1) @ v.double()[..., :4, :]
    torch.testing.assert_close(exact.double(), expected, rtol=1e-5, atol=1e-6)
    many = 4000
    keys = torch.arange(many, dtype=torch.int32) * 31337
    drawn = attend(*(t.expand(many, -1, -1, -1) for t in (q, k, v)), bias, 0.5, keys)
    torch.testing.assert_close(drawn.mean(0, keepdim=True), exact, rtol=0.0, atol=0.12)


def test_heads_split_the_width_as_transformers_does() -> None:
    """Queries, keys and values lie end to end in the fused projection, heads one after another inside each."""
    attention = Attention(8, 2, 0.0)
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention.out.weight.copy_(torch.eye(8))
        attention.out.bias.zero_()
        q, k, v = (
            x @ attention.qkv.weight[i * 8 : i * 8 + 8].T + attention.qkv.bias[i * 8 : i * 8 + 8] for i in range(3)
        )
        parts = []
        for head in range(2):
            at = slice(head * 4, head * 4 + 4)
            parts.append((q[..., at] @ k[..., at].transpose(1, 2) / 2).softmax(-1) @ v[..., at])
        torch.testing.assert_close(attention(x, None, None), torch.cat(parts, -1), rtol=1e-5, atol=1e-6)


def test_defect_a_forward_pass_registers_nothing() -> None:
    """Buffers made on the way change what a checkpoint holds and stop a compiler."""
    config = tiny_config()
    model, objective = build_model(config), build_objective(config, SPECIALS)
    before = list(model.state_dict()), [name for name, _ in model.named_buffers()]
    batch = unpack(ragged_rows(2))
    slots = objective.plan(batch)
    objective.loss(model, batch, slots, objective.counts(batch, slots))
    assert (list(model.state_dict()), [name for name, _ in model.named_buffers()]) == before and not before[1]


def test_padding_is_invisible() -> None:
    model = cast(Electra, build_model(tiny_config()))
    batch = unpack(ragged_rows(4))
    with torch.no_grad():
        x = model.embeddings(batch.ids_BL, batch.segments_BL, None)
        together = model.discriminator(x, batch.lengths_B, None)
        for row, size in enumerate(batch.lengths_B.tolist()):
            alone = model.discriminator(x[row : row + 1, :size], None, None)
            torch.testing.assert_close(together[row : row + 1, :size], alone, rtol=1e-5, atol=1e-5)


def test_embeddings_add_up_three_tables() -> None:
    model = cast(Electra, build_model(tiny_config()))
    e = model.embeddings
    ids, segments = torch.tensor([[2, 9, VOCAB - 1]]), torch.tensor([[0, 1, 0]])
    with torch.no_grad():
        total = e.token.weight[ids[0]] + e.position.weight[:3] + e.segment.weight[segments[0]]
        centred = total - total.mean(1, keepdim=True)
        expected = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-12).sqrt()
        torch.testing.assert_close(e(ids, segments, None)[0], expected, rtol=1e-4, atol=1e-5)
