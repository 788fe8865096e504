"""Parameters and FLOPs against the paper's script, the paper's parameter counts and torch's own counter."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from tiny import SPECIALS, ragged_rows
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra.batches.sequences import unpack
from electra.cli.flops import command
from electra.config.load import preset_names
from electra.config.schema import (
    Config,
    DataConfig,
    GeneratorConfig,
    MaskingConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    TrainConfig,
)
from electra.config.validate import validate
from electra.errors import ConfigError
from electra.model import cost
from electra.model.electra import Bert, Electra, build_model
from electra.objective.base import Objective
from electra.objective.registry import Resources, build_stages
from electra.ops.dispatch import host_ops

OPS = host_ops("plain")  # the counter sees torch's products, not those of C++ loops
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
    small = cost.train_flops(SMALL)
    assert small.tokens == 16_384_000_000
    assert cost.real_flops_per_token(SMALL) / 1e6 == pytest.approx(70.2, abs=0.05)
    assert f"{small.real:.2e}" == "1.15e+18"


@pytest.mark.parametrize(
    ("config", "encoder", "rest", "total"),
    [
        (SMALL, 13_483_008, (66_049, 608_064, 39_098), 14_196_219),
        (BASE, 108_891_648, (591_361, 9_673_984, 229_434), 119_386_427),
        (LARGE, 334_092_288, (1_050_625, 19_216_640, 295_738), 354_655_291),
    ],
)
def test_parameters_are_the_papers(config: Config, encoder: int, rest: tuple[int, ...], total: int) -> None:
    counted = cost.parameters(config)
    assert counted.encoder == encoder
    assert tuple(counted.parts[p] for p in ("discriminator_head", "generator", "generator_head")) == rest
    assert counted.total == total


def test_small_plus_generator() -> None:
    assert cost.parameters(replace(SMALL, generator=GeneratorConfig(width=1.0))).parts["generator"] == 9_510_144


@pytest.mark.parametrize("config", [SMALL, BASE, LARGE, TINY, bert(BASE, steps=1, batch_size=1)])
def test_parameters_are_the_networks(config: Config) -> None:
    with torch.device("meta"):
        network = Bert(config, ops=OPS) if config.objective.name == "mlm" else Electra(config, ops=OPS)
    counted: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        part = name.split(".")[0]
        counted[part] = counted.get(part, 0) + parameter.numel()
    assert cost.parameters(config).parts == counted


def variant(
    name: str = "rtd", kind: str = "transformer", tying: str = "embeddings", algorithm: str = "joint", **more: float
) -> Config:
    """A configuration of the laboratory; sizes at which every part has a share."""
    size = 1.0 if tying == "all" else 0.5
    config = replace(
        TINY,
        model=replace(TINY.model, vocab_size=256, attention_dropout=0.1),  # whole blocks: nothing is padded
        objective=ObjectiveConfig(name=name, **more),  # type: ignore[arg-type]
        generator=GeneratorConfig(kind=kind, tying=tying, width=size, depth=size),  # type: ignore[arg-type]
        optim=OptimConfig(warmup_steps=1),
        train=replace(TINY.train, algorithm=algorithm, start_from_generator=False),  # type: ignore[arg-type]
    )
    validate(config)
    return config


VARIANTS = {
    f"{name} {kind} {tying}": variant(name, kind, tying)
    for name in ("rtd", "rtd-15", "replace-mlm", "all-tokens-mlm")
    for kind, tyings in {
        "transformer": ("embeddings", "none", "gdes"),
        "two-tower": ("embeddings", "none", "gdes"),
        "unigram": ("embeddings",),
        "uniform": ("embeddings",),
    }.items()
    for tying in tyings
}
VARIANTS |= {
    "mlm": variant("mlm"),
    "rtd all": variant(tying="all"),
    "rtd-15 all": variant("rtd-15", tying="all"),
    "electric": variant("electric", "two-tower"),
    "electric none": variant("electric", "two-tower", "none"),
    "adversarial": variant(algorithm="adversarial"),
    "adversarial gdes": variant(algorithm="adversarial", tying="gdes"),
    "two-stage": variant(algorithm="two-stage"),
    "two-stage two-tower": variant("rtd", "two-tower", algorithm="two-stage"),
    "contrastive": variant(contrastive_weight=1.0),
    "overlap": variant(overlap_weight=1.0),
    "overlap beside mlm": variant("mlm", overlap_weight=1.0),
    "correction": variant(correction_weight=1.0),
    "correction gdes": variant(tying="gdes", correction_weight=1.0),
    "rotary": replace(variant(), model=replace(variant().model, rotary=True)),
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_parameters_of_every_variant_are_the_networks(config: Config) -> None:
    with torch.device("meta"):
        network = Bert(config, ops=OPS) if config.objective.name == "mlm" else Electra(config, ops=OPS)
    counted: dict[str, int] = {}
    for name, parameter in network.named_parameters():
        part = name.split(".")[0]
        counted[part] = counted.get(part, 0) + parameter.numel()
    assert cost.parameters(config).parts == counted


def torch_flops(config: Config, objective: Objective) -> float:
    """FLOPs a token that torch counts in a training step on full sequences."""
    torch.manual_seed(0)
    batch, length = config.train.batch_size, config.data.length
    rows = ragged_rows(batch, length=length, vocab=config.model.vocab_size, full=True)
    network, sequences = build_model(config, ops=OPS), unpack(rows)
    masked = objective.choose_masked(sequences)
    plain = sdpa_kernel(SDPBackend.MATH)  # of fused attention without dropout, the counter sees nothing on a CPU
    with plain, FlopCounterMode(display=False) as counter:
        objective.loss(network, sequences, masked, objective.counts(sequences, masked)).loss.backward()
    return counter.get_total_flops() / (batch * length)


def stages(config: Config) -> tuple[Objective, ...]:
    return build_stages(config, Resources(SPECIALS, OPS, lambda: torch.ones(config.model.vocab_size)))


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_real_flops_are_torchs(config: Config) -> None:
    """A training step of the tiny network through its objective, as torch counts it."""
    objectives = stages(config)
    shares = [3 / 7, 4 / 7] if len(objectives) > 1 else [1.0]  # of 7 steps, the generator's half is 3
    total = sum(share * torch_flops(config, stage) for share, stage in zip(shares, objectives, strict=True))
    assert total == pytest.approx(cost.real_flops_per_token(config), rel=1e-9)
    assert cost.train_flops(config).real == pytest.approx(total * 7 * 3 * 40, rel=1e-9)


def test_a_falling_rate_costs_what_each_quarter_begins_with() -> None:
    """The step drops positions after each quarter of a run; of a rate that rises it has the largest throughout."""
    steps = replace(variant().train, steps=8)

    def real(*, rate: float = 0.15, start: float = 0.0, first: int = 8) -> float:
        config = replace(variant(), train=steps, masking=MaskingConfig(rate=rate, rate_start=start))
        return cost.train_flops(config, steps=first).real

    quarters = [real(rate=rate, first=2) for rate in (0.3, 0.2625, 0.225, 0.1875)]
    assert real(start=0.3) == pytest.approx(sum(quarters), rel=1e-12)
    assert real(start=0.3, first=3) == pytest.approx(quarters[0] + quarters[1] / 2, rel=1e-12)
    assert real(start=0.15, rate=0.3) == real(rate=0.3) > real(start=0.3)


def test_short_sequences_cost_what_they_are() -> None:
    long, short = variant(), replace(variant(), data=DataConfig(length=20))
    both = replace(long, data=DataConfig(length=40, length_start=20, length_share=0.25))
    a_step = 3 * 40
    for steps, share in ((7, 0.25), (1, 1.0), (3, 7 / 12)):
        found, of_long = cost.train_flops(both, steps=steps), cost.train_flops(long, steps=steps)
        of_short = cost.train_flops(replace(short, train=replace(short.train, batch_size=6)), steps=steps)
        assert found.tokens == of_long.tokens == of_short.tokens == steps * a_step
        assert found.real == pytest.approx(share * of_short.real + (1 - share) * of_long.real, rel=1e-12)
        assert found.paper == pytest.approx(share * of_short.paper + (1 - share) * of_long.paper, rel=1e-12)
    assert cost.real_flops_per_token(both) == pytest.approx(cost.train_flops(both).real / (7 * a_step), rel=1e-12)


def test_two_stages_cost_one_after_the_other() -> None:
    config = variant(algorithm="two-stage")
    config = replace(config, train=replace(config.train, steps=10, generator_steps=4))
    generator, both = (torch_flops(config, stage) * 3 * 40 for stage in stages(config))
    for steps, expected in ((3, 3 * generator), (4, 4 * generator), (10, 4 * generator + 6 * both)):
        assert cost.train_flops(config, steps=steps).real == pytest.approx(expected, rel=1e-9)
    # The frozen generator of the second stage goes forward only, by the paper's rules too.
    joint = cost.train_flops(variant(), steps=1).paper
    alone, later = (cost.train_flops(config, steps=steps).paper for steps in (1, 5))
    assert later - 4 * alone == pytest.approx(joint - alone / 2, rel=1e-9)


def test_paper_flops_of_the_variants() -> None:
    """By the script's rules for what it knows: lookups, layers, heads."""
    vocab, embedding, width, length = 256, 32, 64, 40
    softmax = 2 * embedding * vocab + 7 * vocab + 14 * embedding

    def paper(*args: str, **more: float) -> float:
        found = cost.train_flops(variant(*args, **more))  # type: ignore[arg-type]
        return found.paper / found.tokens / 2

    detection = 2 * width * width + 11 * width
    assert paper("rtd-15") == paper() and paper(kind="uniform") == paper("rtd", "unigram")
    # No generator at all, and the discriminator's head for another.
    alone = paper(kind="uniform")
    vocabulary = softmax + 2 * width * embedding
    assert paper("replace-mlm", "uniform") - alone == pytest.approx(0.15625 * vocabulary - detection)
    assert paper("all-tokens-mlm", "uniform") - alone == pytest.approx(vocabulary + 2 * width - detection)
    assert paper("mlm") == pytest.approx(paper("replace-mlm", "uniform")), "the same network, alone"
    # Two towers read one lookup; the MLM head reads both.
    lookup = 2 * embedding * vocab + 2 * embedding * (length + 2) + 11 * embedding
    tower = paper() - alone - lookup - 0.15625 * (softmax + 2 * 32 * embedding)
    assert paper(kind="two-tower") - alone == pytest.approx(
        lookup + 2 * tower + 0.15625 * (softmax + 2 * 64 * embedding)
    )
    assert paper(contrastive_weight=1.0) - paper() == pytest.approx(2 * width / length)


def test_flops_command_lists_every_preset() -> None:
    table = CliRunner().invoke(command, [])
    assert table.exit_code == 0
    lines = [line.split() for line in table.output.splitlines() if line]
    rows = {line[0]: line[1:] for line in lines if line[0] in preset_names()}
    assert rows.keys() == set(preset_names())
    assert rows["small"] == ["14.2M", "13.5M", "1.64e10", "1.29e18", "1.15e18", "70.2M", "3.68e9"]
    paper = {
        "base": "6.42e19",
        "large": "7.12e20",
        "large-1.75m": "3.11e21",
        "bert-small": "1.42e18",
        "bert-base": "6.43e19",
    }
    assert {name: rows[name][3] for name in paper} == paper
    assert rows["bert-large"][3] == "7.12e20", "the paper's own BERT: 464,000 steps of 2,048 sequences"
    assert [rows[name][6] for name in ("small", "base")] == ["3.68e9", "2.86e10"]


def test_flops_command_as_json_with_changes() -> None:
    done = CliRunner().invoke(command, ["--preset", "bert-base", "--json", "train.steps=500000"])
    (row,) = json.loads(done.output)
    assert row["preset"] == "bert-base" and row["tokens"] == 500_000 * 256 * 512
    assert row["paper_flops"] == pytest.approx(6.43e19 / 2, rel=1e-3)
    assert row["parameters"]["kept"] == row["parameters"]["embeddings"] + row["parameters"]["encoder"] == 108_891_648


def test_flops_command_refuses_an_unknown_preset() -> None:
    done = CliRunner().invoke(command, ["--preset", "smal"])
    assert isinstance(done.exception, ConfigError) and "did you mean 'small'?" in str(done.exception)
