"""How networks start, and dropout by address: its share, scale, places and independence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest, chisquare
from tiny import VOCAB, make_electra, make_model, make_objective, ragged_rows, tiny_config
from torch import Tensor, nn

from electra.batches.sequences import unpack
from electra.config.schema import Config, GeneratorConfig, ObjectiveConfig
from electra.model.encoder import Encoder, generator_shape
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import Norm
from electra.ops.dispatch import Kernels, host_ops
from electra.ops.reference import add_dropout_norm, attention, embeddings
from electra.ops.reference.dropout import keep_mask

KEYS = torch.arange(200, dtype=torch.int32) * 7919
both_kernels = pytest.mark.parametrize("kernels", ["auto", "plain"])


def test_weights_start_as_the_official_ones() -> None:
    model = make_electra(replace(Config(), model=replace(Config().model, layers=1, vocab_size=5000)))
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
    """At one half by default, as the official one; where asked, at the rate of replaced tokens among those scored."""
    for start, expected in ((False, halves), (True, known)):
        weights = ObjectiveConfig(name=name, base_rate_start=start)  # type: ignore[arg-type]
        config = tiny_config(objective=weights)
        model = make_electra(config)
        objective = make_objective(config)
        batch = unpack(ragged_rows(64, full=True))
        masked = objective.choose_masked(batch)
        sums = objective.loss(model, batch, masked, objective.counts(batch, masked)).sums
        means = objective.means(dict(zip(objective.stats, sums.tolist(), strict=True)))
        assert means[figure] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("name", ["rtd", "mlm", "replace-mlm", "all-tokens-mlm"])
def test_heads_can_start_at_the_corpus_frequencies(name: str) -> None:
    """Every MLM head: a token's first probability is its share of the corpus; one that never occurs counts half."""
    config = tiny_config(objective=ObjectiveConfig(name=name, unigram_start=True))  # type: ignore[arg-type]
    counts = torch.arange(config.model.vocab_size) % 7 * 30
    model = make_model(config, frequencies=lambda: counts)
    heads = [module for module in model.modules() if isinstance(module, MaskedHead)]
    assert len(heads) == (1 if name in ("rtd", "mlm") else 2)
    expected = (counts + 0.5) / float((counts + 0.5).sum())
    for head in heads:
        torch.testing.assert_close(head.bias.detach().softmax(0), expected)
    assert all(not head.bias.any() for head in make_model(config).modules() if isinstance(head, MaskedHead))
    even = make_model(tiny_config(objective=ObjectiveConfig(name=name)), frequencies=lambda: counts)  # type: ignore[arg-type]
    assert all(not head.bias.any() for head in even.modules() if isinstance(head, MaskedHead))


def test_a_seed_is_a_network() -> None:
    one, same, other = (make_model(replace(tiny_config(), seed=seed)).state_dict() for seed in (0, 0, 1))
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
    """Elsewhere only the token table was shared, or the generator had the discriminator's width."""
    model = make_electra(tiny_config())
    assert model.generator_embeddings is model.embeddings
    shared = {id(p) for p in model.generator.parameters()} & {id(p) for p in model.discriminator.parameters()}
    assert not shared
    baseline = make_model(tiny_config(objective=ObjectiveConfig(name="mlm")))
    assert {name.partition(".")[0] for name, _ in baseline.named_parameters()} == {"embeddings", "encoder", "head"}


@both_kernels
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(rate: float, kernels: Kernels) -> None:
    x = torch.ones(200, 7, 33)
    y = host_ops(kernels).dropout(x, rate, KEYS)
    kept = y != 0
    assert torch.allclose(y[kept], torch.tensor(1 / (1 - rate)))
    assert binomtest(int(kept.sum()), kept.numel(), 1 - rate).pvalue > 1e-3
    # No sample, no place is favoured.
    assert chisquare(kept.flatten(1).sum(1).numpy()).pvalue > 1e-3
    by_place = kept.float().mean(0).flatten()
    assert float((by_place - (1 - rate)).abs().max()) < 5 * math.sqrt(rate * (1 - rate) / 200)


@both_kernels
def test_no_dropout_without_keys_or_rate(kernels: Kernels) -> None:
    x, dropout = torch.randn(3, 5), host_ops(kernels).dropout
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, KEYS[:3]) is x


@both_kernels
def test_dropout_depends_on_the_samples_key_only(kernels: Kernels) -> None:
    x, dropout = torch.ones(6, 40), host_ops(kernels).dropout
    whole = dropout(x, 0.5, KEYS[:6])
    for row in range(6):
        assert torch.equal(dropout(x[:1], 0.5, KEYS[row : row + 1])[0], whole[row])
    assert len({tuple(row.tolist()) for row in whole}) == 6
    assert torch.equal(keep_mask(KEYS[:6], 3, 39, 0.5)[..., :20], keep_mask(KEYS[:6], 3, 40, 0.5)[..., :20])
    assert torch.equal(keep_mask(KEYS[:6], 3, 40, 0.5), keep_mask(KEYS[:6], 9, 40, 0.5)[:, :3])


@both_kernels
def test_gradients_pass_where_activations_do(kernels: Kernels) -> None:
    x = torch.randn(4, 50, requires_grad=True)
    y = host_ops(kernels).dropout(x, 0.3, KEYS[:4])
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0)


def test_every_place_in_the_network_drops_a_pattern_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pattern used twice would couple layers, or generator and discriminator."""
    config, plain = tiny_config(dropout=0.5), host_ops("plain")
    found: list[tuple[torch.Size, Tensor]] = []

    def watch(x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
        assert keys_B is not None and rate == 0.5
        found.append((x.shape, keys_B))
        return plain.dropout(x, rate, keys_B)

    for module in (embeddings, attention, add_dropout_norm):
        monkeypatch.setattr(module, "dropout", watch)
    model, objective = make_model(config, ops=plain), make_objective(config, ops=plain)
    batch = unpack(ragged_rows(4))
    masked = objective.choose_masked(batch)
    objective.loss(model, batch, masked, objective.counts(batch, masked))
    # Generator and discriminator: embeddings, then probabilities, attention and MLP of two layers.
    assert len(found) == 2 * (1 + 2 * 3)
    assert sum(shape[-1] == shape[-2] == 24 for shape, _ in found) == 4, "attention probabilities of four layers"
    keys = torch.stack([keys for _, keys in found])
    assert len(set(keys.flatten().tolist())) == keys.numel()


def attention_inputs(length: int) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Input of width 8, weight and bias; and its queries, keys and values for two heads, in double precision."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator) for size in ((1, length, 8), (24, 8), (24,)))
    weight = weight / 8**0.5
    # Queries, keys and values lie end to end in the fused projection, heads one after another inside each.
    end_to_end = (x.double() @ weight.double().T + bias.double()).split(8, dim=-1)
    return x, weight, bias, [part.view(1, length, 2, 4).transpose(1, 2) for part in end_to_end]


@both_kernels
def test_attention_with_dropout_is_attention_in_expectation(kernels: Kernels) -> None:
    x, weight, bias, (q, k, v) = attention_inputs(6)
    mask = torch.zeros(1, 1, 1, 6)
    mask[..., 4:] = torch.finfo(torch.float32).min
    arguments = {"heads": 2, "mask_B1LL": mask, "rate": 0.5}
    exact = host_ops(kernels).attention(x, weight, bias, **arguments, keys_B=None)
    scores = q @ k.transpose(-1, -2) / 2
    expected = (scores[..., :4].softmax(-1) @ v[..., :4, :]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(exact.double(), expected, rtol=1e-5, atol=1e-6)
    many = 4000
    keys = torch.arange(many, dtype=torch.int32) * 31337
    drawn = host_ops(kernels).attention(x.expand(many, -1, -1), weight, bias, **arguments, keys_B=keys)
    torch.testing.assert_close(drawn.mean(0, keepdim=True), exact, rtol=0.0, atol=0.12)


@both_kernels
def test_heads_split_the_width_as_transformers_does(kernels: Kernels) -> None:
    x, weight, bias, (q, k, v) = attention_inputs(5)
    heads = [(q[:, n] @ k[:, n].transpose(1, 2) / 2).softmax(-1) @ v[:, n] for n in range(2)]
    found = host_ops(kernels).attention(x, weight, bias, heads=2, mask_B1LL=None, rate=0.0, keys_B=None)
    torch.testing.assert_close(found.double(), torch.cat(heads, -1), rtol=1e-5, atol=1e-6)


def test_defect_a_forward_pass_registers_nothing() -> None:
    """Buffers made in a forward pass change what a checkpoint holds and stop a compiler."""
    config = tiny_config()
    model, objective = make_model(config), make_objective(config)
    before = list(model.state_dict()), [name for name, _ in model.named_buffers()]
    batch = unpack(ragged_rows(2))
    masked = objective.choose_masked(batch)
    objective.loss(model, batch, masked, objective.counts(batch, masked))
    assert (list(model.state_dict()), [name for name, _ in model.named_buffers()]) == before and not before[1]


def test_nothing_attends_to_padding() -> None:
    model = make_electra(tiny_config())
    batch = unpack(ragged_rows(4))
    with torch.no_grad():
        x = model.embeddings(batch.ids_BL, batch.segments_BL, None)
        together = model.discriminator(x, batch.lengths_B, None)
        for row, size in enumerate(batch.lengths_B.tolist()):
            alone = model.discriminator(x[row : row + 1, :size], None, None)
            torch.testing.assert_close(together[row : row + 1, :size], alone, rtol=1e-5, atol=1e-5)


def test_embeddings_add_up_three_tables() -> None:
    model = make_electra(tiny_config())
    e = model.embeddings
    ids, segments = torch.tensor([[2, 9, VOCAB - 1]]), torch.tensor([[0, 1, 0]])
    with torch.no_grad():
        total = e.token.weight[ids[0]] + e.position.weight[:3] + e.segment.weight[segments[0]]
        centred = total - total.mean(1, keepdim=True)
        expected = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-12).sqrt()
        torch.testing.assert_close(e(ids, segments, None)[0], expected, rtol=1e-4, atol=1e-5)


def test_the_generator_may_have_less_dropout() -> None:
    """Without any, keys change nothing in its layers; the discriminator's keep theirs."""
    config = tiny_config()
    config = replace(config, model=replace(config.model, dropout=0.3, attention_dropout=0.3))
    keys = torch.tensor([3, 5], dtype=torch.int32)

    def dropped(encoder: nn.Module) -> bool:
        x_BLE = torch.randn(2, 6, config.model.embedding, generator=torch.Generator().manual_seed(1))
        return not torch.equal(encoder(x_BLE, None, keys), encoder(x_BLE, None, None))

    for scale, expected in ((1.0, True), (0.5, True), (0.0, False)):
        model = make_electra(replace(config, generator=replace(config.generator, dropout_scale=scale)))
        assert dropped(model.generator) == expected and dropped(model.discriminator)
        assert {layer.rate for layer in model.generator.layers} == {0.3 * scale}
