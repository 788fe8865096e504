"""The compute ledger against the paper's script, the paper's parameter counts and torch's own counter."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from electra.cli.flops import command
from electra.config.load import preset_names
from electra.config.schema import Config, DataConfig, GeneratorConfig, ModelConfig, ObjectiveConfig, TrainConfig
from electra.errors import ConfigError
from electra.model import cost
from electra.model.electra import Bert, Electra, build_model

SMALL = Config()
BASE = replace(
    SMALL,
    model=ModelConfig(layers=12, width=768, heads=12, ffn=3072, embedding=768),
    generator=GeneratorConfig(width=1 / 3),
    data=DataConfig(length=512),
    train=TrainConfig(steps=766_000, batch_size=256),
)
LARGE = replace(
    BASE,
    model=ModelConfig(layers=24, width=1024, heads=16, ffn=4096, embedding=1024),
    generator=GeneratorConfig(width=0.25),
    train=TrainConfig(steps=400_000, batch_size=2048),
)
TINY = replace(
    SMALL,
    model=ModelConfig(layers=2, width=64, heads=2, ffn=128, embedding=32, vocab_size=200, positions=64, dropout=0.1),
    generator=GeneratorConfig(width=0.5),
    data=DataConfig(length=40),
    train=TrainConfig(steps=7, batch_size=3),
)


def bert(config: Config, *, steps: int, batch_size: int) -> Config:
    return replace(config, objective=ObjectiveConfig(name="mlm"), train=TrainConfig(steps=steps, batch_size=batch_size))


# Printed by the published script, to the digits that reference figures give.
@pytest.mark.parametrize(
    ("config", "figure", "digits"),
    [
        (SMALL, 1.294e18, 3),
        (BASE, 6.42e19, 2),
        (LARGE, 7.12e20, 2),
        (replace(LARGE, train=TrainConfig(steps=1_750_000, batch_size=2048)), 3.11e21, 2),
        (bert(SMALL, steps=1_450_000, batch_size=128), 1.419e18, 3),
        (bert(BASE, steps=1_000_000, batch_size=256), 6.43e19, 2),
        (bert(LARGE, steps=1_000_000, batch_size=256), 1.917e20, 3),
    ],
)
def test_paper_flops_are_the_scripts(config: Config, figure: float, digits: int) -> None:
    assert f"{cost.train_flops(config).paper:.{digits}e}" == f"{figure:.{digits}e}"


def test_paper_table_1_counts_a_generator_of_width_128() -> None:
    wider = replace(SMALL, generator=GeneratorConfig(width=0.5))
    assert f"{cost.train_flops(wider).paper:.3e}" == "1.424e+18"
    assert f"{cost.train_flops(wider, steps=500_000).paper:.1e}" == "7.1e+17"


def test_paper_inference_flops() -> None:
    assert f"{cost.paper_infer_flops(SMALL.model):.2e}" == "3.68e+09"
    assert f"{cost.paper_infer_flops(BASE.model):.2e}" == "2.86e+10"


def test_real_flops_of_small() -> None:
    ledger = cost.train_flops(SMALL)
    assert ledger.tokens == 16_384_000_000
    assert cost.forward_flops_per_token(SMALL) / 1e6 == pytest.approx(20.6 + 2.75, abs=0.05)
    assert cost.real_flops_per_token(SMALL) / 1e6 == pytest.approx(70.2, abs=0.05)
    assert f"{ledger.real:.2e}" == "1.15e+18"


@pytest.mark.parametrize(
    ("config", "kept", "rest", "total"),
    [
        (SMALL, 13_483_008, (66_049, 608_064, 39_098), 14_196_219),
        (BASE, 108_891_648, (591_361, 9_673_984, 229_434), 119_386_427),
        (LARGE, 334_092_288, (1_050_625, 19_216_640, 295_738), 354_655_291),
    ],
)
def test_parameters_are_the_papers(config: Config, kept: int, rest: tuple[int, ...], total: int) -> None:
    counted = cost.parameters(config)
    assert counted.kept == kept
    assert tuple(counted.parts[p] for p in ("discriminator_head", "generator", "generator_head")) == rest
    assert counted.total == total


def test_small_plus_generator() -> None:
    assert cost.parameters(replace(SMALL, generator=GeneratorConfig(width=1.0))).parts["generator"] == 9_510_144


@pytest.mark.parametrize("config", [SMALL, BASE, LARGE, TINY, bert(BASE, steps=1, batch_size=1)])
def test_parameters_are_the_networks(config: Config) -> None:
    with torch.device("meta"):
        network = Bert(config) if config.objective.name == "mlm" else Electra(config)
    counted: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        part = name.split(".")[0]
        counted[part] = counted.get(part, 0) + parameter.numel()
    assert cost.parameters(config).parts == counted


@pytest.mark.parametrize("config", [TINY, bert(TINY, steps=7, batch_size=3)])
def test_real_flops_are_torchs(config: Config) -> None:
    """One real training step of the tiny network, counted by torch, forward and backward."""
    torch.manual_seed(0)
    network = build_model(config)
    batch, length, slots = config.train.batch_size, config.data.length, 6
    assert slots == int((config.masking.rate + 0.005) * length)
    ids = torch.randint(config.model.vocab_size, (batch, length))
    keys = torch.arange(batch, dtype=torch.int32)  # dropout keys: attention is then plain matrix products

    def masked_logits(hidden: torch.Tensor, head: torch.nn.Module) -> torch.Tensor:
        picked = hidden[:, :slots].reshape(batch * slots, -1)
        return head(picked, network.embeddings.token.weight, head.bias)  # type: ignore[no-any-return]

    with FlopCounterMode(display=False) as forward:
        x = network.embeddings(ids, torch.zeros_like(ids), keys)
        if isinstance(network, Bert):
            loss = masked_logits(network.encoder(x, None, keys), network.head).sum()
        else:
            loss = masked_logits(network.generator(x, None, keys), network.generator_head).sum()
            loss = loss + network.discriminator_head(network.discriminator(x, None, keys)).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    tokens = batch * length
    assert forward.get_total_flops() == pytest.approx(cost.forward_flops_per_token(config) * tokens, rel=1e-9)
    total = forward.get_total_flops() + backward.get_total_flops()
    assert total == pytest.approx(cost.real_flops_per_token(config) * tokens, rel=1e-9)
    assert cost.train_flops(config, steps=1).real == pytest.approx(total, rel=1e-9)


def test_flops_command_lists_every_preset() -> None:
    table = CliRunner().invoke(command, [])
    assert table.exit_code == 0
    lines = [line.split() for line in table.output.splitlines() if line]
    rows = {line[0]: line[1:] for line in lines if line[0] in preset_names()}
    assert rows.keys() == set(preset_names())
    assert rows["small"] == ["14.2M", "13.5M", "1.64e10", "1.29e18", "1.15e18", "70.2M", "3.68e9"]
    assert rows["bert-small"][3] == "1.42e18" and rows["large"][3] == "7.12e20"


def test_flops_command_as_json_with_changes() -> None:
    done = CliRunner().invoke(command, ["--preset", "bert-base", "--json", "train.steps=500000"])
    (row,) = json.loads(done.output)
    assert row["preset"] == "bert-base" and row["tokens"] == 500_000 * 256 * 512
    assert row["paper_flops"] == pytest.approx(6.43e19 / 2, rel=1e-3)
    assert row["parameters"]["kept"] == row["parameters"]["embeddings"] + row["parameters"]["encoder"] == 108_891_648


def test_flops_command_refuses_an_unknown_preset() -> None:
    done = CliRunner().invoke(command, ["--preset", "smal"])
    assert isinstance(done.exception, ConfigError) and "did you mean 'small'?" in str(done.exception)
