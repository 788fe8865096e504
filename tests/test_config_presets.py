"""The presets against the paper's Table 6, copied here by hand."""

from __future__ import annotations

import pytest

from electra.config.load import diff, preset, preset_names, preset_title
from electra.config.schema import Config
from electra.errors import ConfigError

# size: layers, hidden, FFN, heads, embedding, generator size, mask %, warm-up, lr, batch, steps BERT, steps ELECTRA
TABLE_6 = {
    "small": (12, 256, 1024, 4, 128, 1 / 4, 15, 10_000, 5e-4, 128, 1_450_000, 1_000_000),
    "base": (12, 768, 3072, 12, 768, 1 / 3, 15, 10_000, 2e-4, 256, 1_000_000, 766_000),
    "large": (24, 1024, 4096, 16, 1024, 1 / 4, 25, 10_000, 2e-4, 2048, 464_000, 400_000),
}
LENGTH = {"small": 128, "base": 512, "large": 512}
ELECTRA = {"small": "small", "base": "base", "large": "large", "small-plus": "small", "large-1.75m": "large"}
BERT = {"bert-small": "small", "bert-base": "base", "bert-large": "large"}
STEPS_BEYOND_TABLE_6 = {"small-plus": 4_000_000, "large-1.75m": 1_750_000}


def test_names_in_order() -> None:
    names = "tiny, modern-small, small, small-plus, base, large, large-1.75m, bert-small, bert-base, bert-large"
    assert ", ".join(preset_names()) == names


@pytest.mark.parametrize("name", [*ELECTRA, *BERT])
def test_table_6(name: str) -> None:
    size = {**ELECTRA, **BERT}[name]
    layers, hidden, ffn, heads, embedding, generator, mask, warmup, lr, batch, bert, electra = TABLE_6[size]
    config = preset(name)
    model, optim = config.model, config.optim
    assert (model.layers, model.width, model.ffn, model.heads, model.embedding) == (
        layers,
        hidden,
        ffn,
        heads,
        embedding,
    )
    assert model.width // model.heads == 64
    assert (model.vocab_size, model.positions, model.dropout, model.attention_dropout) == (30522, 512, 0.1, 0.1)
    assert config.masking.rate == mask / 100
    assert (optim.warmup_steps, optim.lr, optim.eps, optim.beta1, optim.beta2) == (warmup, lr, 1e-6, 0.9, 0.999)
    assert (optim.weight_decay, optim.decay_steps, optim.clip) == (0.01, 0, 1.0)
    assert config.train.batch_size == batch
    assert config.data.length == (512 if name == "small-plus" else LENGTH[size])
    assert config.objective.name == ("mlm" if name in BERT else "rtd")
    assert (config.objective.mlm_weight, config.objective.rtd_weight) == (1.0, 50.0)
    assert config.train.steps == STEPS_BEYOND_TABLE_6.get(name, bert if name in BERT else electra)
    if name in ELECTRA:
        assert config.generator.width == (1.0 if name == "small-plus" else generator)
        assert config.generator.depth == 1.0
    assert config.preset == name and preset_title(name)


def test_generator_widths_are_the_released_ones() -> None:
    widths = {name: round(preset(name).model.width * preset(name).generator.width) for name in ELECTRA}
    assert widths == {"small": 64, "base": 256, "large": 256, "small-plus": 256, "large-1.75m": 256}


def test_defaults_are_small() -> None:
    """But for two choices that were measured for the paper's sizes and leave others alone."""
    chosen = {key: value for key, value, _ in diff(preset("small"), Config())}
    assert chosen == {"objective.unigram_start": True, "masking.policy": "official"}


@pytest.mark.parametrize("name", [*ELECTRA, *BERT])
def test_the_papers_models_start_at_the_words_frequencies(name: str) -> None:
    assert preset(name).objective.unigram_start and preset(name).masking.policy == "official"


def test_tiny() -> None:
    config = preset("tiny")
    assert (config.model.layers, config.model.width, config.model.heads, config.model.embedding) == (4, 128, 2, 64)
    assert (config.model.vocab_size, config.data.length, config.generator.width) == (8192, 64, 0.5)


def test_unknown_preset() -> None:
    listed = r"\(one of: tiny, modern-small, small, .*did you mean 'small'\?"
    with pytest.raises(ConfigError, match=rf"preset: 'smal' does not exist {listed}"):
        preset("smal")
