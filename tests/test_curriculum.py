"""Schedules over a run: hand-computed numbers, draws at a lower rate, samples that change, exact runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import tiny_runs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Case, run_all
from safetensors.torch import load_file
from tiny import OPS, SPECIALS, VOCAB, Trainer, make_electra, make_objective, ragged_rows, tiny_config
from tiny_runs import STEPS, losses, make_data, metric_lines, small_config, stop_at, weights
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.schedules import largest_rate_left, mean_masked, straight_line
from electra.batches.sequences import Sequences, unpack
from electra.checkpoint import store
from electra.config.load import load
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, ObjectiveConfig
from electra.errors import ConfigError
from electra.interop.models import load_model
from electra.model.electra import build_model
from electra.model.layers import Layer, set_dropout
from electra.objective.base import Outcome
from electra.objective.curriculum import first_masked
from electra.objective.generators import FrequencyGenerator, MaskedGenerator, Sampling
from electra.objective.registry import Resources, build_generator
from electra.ops.reference.choose_masked import choose_masked
from electra.ops.reference.linear_cross_entropy import sample
from electra.pretrain import pretrain
from electra.train.schedule import newest_share, progress

ALL = [
    "masking.rate_start=0.3",
    "generator.temperature_start=2",
    "generator.temperature_share=0.5",
    "generator.unigram_share=0.3",
    "optim.ema=0.75",
    "optim.matrices=normuon",
    "model.rotary=true",
    "data.length_start=16",
    "model.dropout_share=0.6",
]
"""Every option at once."""


def at(share: float) -> Tensor:
    return torch.full((), share, dtype=torch.float64)


def counts() -> Tensor:
    return torch.arange(VOCAB) + 1


def test_schedules_by_hand() -> None:
    assert [progress(step, total=8) for step in (0, 2, 8, 9)] == [0.0, 0.25, 1.0, 1.0]
    assert progress(5, total=None) == 0.0
    rates = [float(straight_line(at(share), start=0.30, end=0.15)) for share in (0, 0.2, 0.5, 1)]
    assert rates == pytest.approx([0.30, 0.27, 0.225, 0.15], abs=1e-15)
    rising = [float(straight_line(at(share), start=1.0, end=3.0, share=0.5)) for share in (0, 0.25, 0.5, 0.9)]
    assert rising == pytest.approx([1.0, 2.0, 3.0, 3.0], abs=1e-15)
    assert [newest_share(step, decay=0.75) for step in (0, 1, 2, 3, 4, 100)] == pytest.approx(
        [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4]
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([24, 64, 128]),
    st.floats(0.06, 0.5),
    st.sampled_from(get_args(get_type_hints(MaskingConfig)["policy"])),
    st.booleans(),
)
def test_fewer_positions_are_a_draw_at_the_lower_rate(
    seed: int, length: int, rate: float, policy: str, rare: bool
) -> None:
    """The first of the positions drawn for 50 %: those that drawing at the rate itself gives."""
    batch = unpack(ragged_rows(6, length=length, seed=seed))
    special = (SPECIALS.cls, SPECIALS.sep, SPECIALS.mask)
    log_weights = -counts().double().log() if rare else None

    def drawn(rate: float) -> MaskedPositions:
        masking = MaskingConfig(rate=rate, policy=policy)  # type: ignore[arg-type]
        return choose_masked(*batch.addressed, masking=masking, special=special, log_weights_V=log_weights)

    alone, first = drawn(rate), first_masked(drawn(0.5), batch, at(rate))
    count = alone.used_BM.shape[1]
    assert torch.equal(first.used_BM[:, :count], alone.used_BM) and not first.used_BM[:, count:].any()
    assert torch.equal(first.positions_BM[:, :count], alone.positions_BM) and not first.positions_BM[:, count:].any()


def test_training_follows_the_rate_and_evaluation_does_not() -> None:
    masking = MaskingConfig(rate_start=0.5, rate=0.25)
    config = tiny_config(masking=masking, dropout=0.0)
    trainer = Trainer(config, micro=8)
    rows, used = ragged_rows(8, full=True), []
    figures = []
    for step in (0, 2, 4):
        trainer.step.place(step, total=4)
        trainer.step(rows, 0.0)
        used.append(trainer.step.read()["masked"])
        figures.append(trainer.objective.evaluate(trainer.model, unpack(rows)))
    assert used == [8 * 12, 8 * 9, 8 * 6]
    plain = make_objective(tiny_config(masking=MaskingConfig(rate=0.25))).evaluate(trainer.model, unpack(rows))
    for found in figures:
        assert torch.equal(found.used_BM, plain.used_BM) and torch.equal(found.nll_BM, plain.nll_BM)
        assert found.logits_BL is not None and plain.logits_BL is not None
        assert torch.equal(found.logits_BL, plain.logits_BL)


def test_masked_positions_that_are_no_longer_in_use_are_dropped() -> None:
    """In quarters of the run the step has room for the rate at its beginning; the losses are those of full room."""
    config = tiny_config(masking=MaskingConfig(rate_start=0.5, rate=0.25), dropout=0.0)
    narrow, full = Trainer(config, micro=4), Trainer(config, micro=4)
    full.step._masking = None
    rooms = []
    narrow_loss = narrow.step._loss

    def measured(batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        rooms.append(masked.used_BM.shape[1])
        return narrow_loss(batch, masked, counts)

    narrow.step._loss = measured
    for step in range(8):
        figures = []
        for trainer in (narrow, full):
            trainer.step.place(step, total=8)
            trainer.step(ragged_rows(4, full=True, seed=step), 1e-3)
            figures.append(trainer.step.read())
        assert figures[0] == pytest.approx(figures[1], rel=1e-5)
    assert rooms == [12, 12, 10, 10, 9, 9, 7, 7]


def test_a_masking_rate_looked_up_by_quarters() -> None:
    falls, rises = MaskingConfig(rate_start=0.30, rate=0.15), MaskingConfig(rate_start=0.15, rate=0.30)
    shares = (0.0, 0.24, 0.25, 0.5, 0.76, 1.0)
    assert [largest_rate_left(x, falls) for x in shares] == pytest.approx([0.3, 0.3, 0.2625, 0.225, 0.1875, 0.15])
    assert {largest_rate_left(x, rises) for x in shares} == {0.30}
    # Of 128 tokens 39, 34, 29 and 24 positions, quarter by quarter.
    assert [mean_masked(128, falls, done=done) for done in (0.25, 0.5, 0.75, 1.0)] == [39, 36.5, 34, 31.5]
    assert mean_masked(128, falls, done=0.375) == pytest.approx((39 + 34 / 2) / 1.5)
    assert mean_masked(128, rises) == 39 and mean_masked(128, MaskingConfig(rate=0.15)) == 19


def test_dropout_ends_where_its_share_does() -> None:
    """Beside a network whose rates are set to 0 by hand after two of four steps."""

    def trained(share: float, *, by_hand: bool = False) -> Tensor:
        config = tiny_config(dropout=0.3)
        trainer = Trainer(replace(config, model=replace(config.model, dropout_share=share)), micro=8)
        for step in range(4):
            if by_hand and step == 2:
                set_dropout(trainer.model, rate=0.0, attention_rate=0.0)
            trainer.step.place(step, total=4)
            trainer.step(ragged_rows(8, seed=step), 1e-3)
        return trainer.master.weights

    assert torch.equal(trained(0.5), trained(1.0, by_hand=True))
    assert not torch.equal(trained(0.5), trained(1.0)) and not torch.equal(trained(0.5), trained(0.75))


def test_dropout_that_ended_stays_away_when_an_estimate_grows() -> None:
    config = tiny_config(dropout=0.3)
    trainer = Trainer(replace(config, model=replace(config.model, dropout_share=0.5)), micro=8)
    for total, rate in ((8, 0.3), (4, 0.0), (8, 0.0)):
        trainer.step.place(2, total=total)
        assert {layer.rate for layer in trainer.model.modules() if isinstance(layer, Layer)} == {rate}


def test_the_base_rate_starts_at_the_first_rate() -> None:
    def start(masking: MaskingConfig) -> float:
        config = tiny_config(masking=masking, objective=ObjectiveConfig(base_rate_start=True))
        bias = build_model(config, ops=OPS).get_parameter("discriminator_head.score.bias")
        return float(bias.detach().sigmoid())

    assert start(MaskingConfig(rate=0.15, rate_start=0.3)) == pytest.approx(0.3)
    assert start(MaskingConfig(rate=0.15)) == pytest.approx(0.15)


def test_a_temperature_on_the_device_is_the_same_temperature() -> None:
    config = GeneratorConfig(temperature=1.0, temperature_start=3.0, temperature_share=0.5)
    now = Sampling.at(config, at(0.25)).temperature
    assert isinstance(now, Tensor) and float(now) == 2.0
    assert Sampling.at(config, None) == (1.0, False) and not Sampling.at(config, None).changes
    logp = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    keys = torch.arange(64, dtype=torch.int32)
    assert torch.equal(sample(logp, keys, temperature=now), sample(logp, keys, temperature=2.0))


def test_samples_follow_the_temperature_and_end_as_the_generators_own() -> None:
    """At 1, bit for bit those without a temperature; elsewhere those of a run that has the same one throughout."""
    batch = unpack(ragged_rows(8))
    falls, share = GeneratorConfig(width=0.5, temperature_start=3.0, temperature_share=0.5), at(0.0)

    def samples(generator: GeneratorConfig) -> Tensor:
        config = tiny_config(generator=generator, dropout=0.0)
        made = build_generator(config, Resources(SPECIALS, OPS, progress=share))
        masked = make_objective(config).choose_masked(batch)
        return made.sample(make_electra(config), batch, masked, dropout=True, logits=False).sampled_M

    for done, temperature in ((0.0, 3.0), (0.25, 2.0), (0.5, 1.0), (1.0, 1.0)):
        share.fill_(done)
        assert torch.equal(samples(falls), samples(GeneratorConfig(width=0.5, temperature=temperature)))
    share.fill_(0.0)
    assert not torch.equal(samples(falls), samples(GeneratorConfig(width=0.5)))


def test_replacements_by_frequency_come_first() -> None:
    generator = GeneratorConfig(width=0.5, unigram_share=0.25)
    config, batch = tiny_config(generator=generator, dropout=0.0), unpack(ragged_rows(8))
    model, share = make_electra(config), at(0.0)
    made = build_generator(config, Resources(SPECIALS, OPS, counts, progress=share))
    masked = make_objective(config).choose_masked(batch)
    own = MaskedGenerator(masking=config.masking, config=generator, mask_id=SPECIALS.mask, ops=OPS)
    weights_V = counts().clone()
    weights_V[[SPECIALS.pad, SPECIALS.cls, SPECIALS.sep, SPECIALS.mask]] = 0
    unigram = FrequencyGenerator.of(weights_V, generator, ops=OPS)
    expected = own.sample(model, batch, masked, dropout=True)
    drawn = unigram.sample(model, batch, masked, dropout=True)
    assert made.learns
    for done, replacements in ((0.0, drawn), (0.2499, drawn), (0.25, expected), (1.0, expected)):
        share.fill_(done)
        samples = made.sample(model, batch, masked, dropout=True)
        assert torch.equal(samples.sampled_M, replacements.sampled_M)
        assert torch.equal(samples.nll_M, expected.nll_M)  # the generator learns all along


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["masking.rate_start=0.3", "train.algorithm=adversarial"], "masking.rate_start"),
        (["masking.rate_start=0.3", "objective.name=electric", "generator.kind=two-tower"], "masking.rate_start"),
        (["generator.unigram_share=0.1", "objective.name=mlm"], "generator.unigram_share"),
        (["generator.temperature_start=2", "generator.kind=unigram"], "generator.temperature_start"),
        (["masking.rate_start=0.001"], "masking.rate_start"),
    ],
)
def test_what_cannot_change_is_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load("small", overrides=overrides)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def config() -> Config:
    return small_config(*ALL, "checkpoint.every=1", "checkpoint.keep=99")


@pytest.fixture(scope="module")
def whole(data: Path, config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(config, data=data, out=tmp_path_factory.mktemp("whole") / "run")


def test_promise_04_resuming_is_bitwise(tmp_path: Path, data: Path, config: Config, whole: Path) -> None:
    out = tmp_path / "run"
    stop_at(5, config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)


def test_the_average_is_that_of_the_saved_weights(whole: Path, tmp_path: Path) -> None:
    """By hand, in double precision, from the weights after every step."""
    average: dict[str, Tensor] = {}
    for step in range(1, STEPS + 1):
        model = load_file(store.checkpoint_path(whole, step) / "model.safetensors")
        newest = max(0.25, 1 / step)
        for name, tensor in model.items():
            before = average.get(name, torch.zeros_like(tensor).double())
            average[name] = (1 - newest) * before + newest * tensor.double()
    stored = store.read_weights(store.checkpoint_path(whole, STEPS))
    assert stored.keys() == average.keys()
    for name, tensor in stored.items():
        torch.testing.assert_close(tensor.double(), average[name], atol=1e-6, rtol=1e-5)
    last = load_file(store.checkpoint_path(whole, STEPS) / "model.safetensors")
    assert any(not torch.allclose(last[name], tensor, atol=1e-4) for name, tensor in stored.items())
    used = load_model(whole).module.state_dict()
    assert torch.equal(used["embeddings.token.weight"], stored["embeddings.token.weight"])


def test_schedules_that_stand_still_change_no_bit(tmp_path: Path, data: Path) -> None:
    plain = pretrain(small_config(), data=data, out=tmp_path / "plain")
    still = small_config("masking.rate_start=0.15", "optim.ema=0.9")
    again = pretrain(still, data=data, out=tmp_path / "still")
    assert losses(plain) == losses(again)
    assert weights(plain)[1] == weights(again)[1]
    # Held-out figures are of the average, which ends elsewhere than the weights.
    ends = [[line for line in metric_lines(run) if line["kind"] == "eval"][-1] for run in (plain, again)]
    assert ends[0]["eval/rtd_loss"] != ends[1]["eval/rtd_loss"]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where the processor has no bf16
def test_evaluation_leaves_the_last_weights_as_they_were() -> None:
    config = tiny_config(dropout=0.0)
    config = replace(config, optim=replace(config.optim, ema=0.5))
    trainer = Trainer(config, micro=8, compute=torch.bfloat16)
    for step in range(3):
        trainer.step.place(step, total=3)
        trainer.step(ragged_rows(8, seed=step), 1e-3)
    master = trainer.master
    assert master.ema is not None and master.copy is not None
    before, copy = master.weights.clone(), master.copy.clone()
    with master.averaged():
        assert torch.equal(master.weights, master.ema) and not torch.equal(master.weights, before)
        assert torch.equal(master.copy, master.ema[master.copied].bfloat16())
    assert torch.equal(master.weights, before) and torch.equal(master.copy, copy)


def test_promise_06_two_processes_compute_what_one_does(tmp_path: Path, data: Path, whole: Path) -> None:
    arguments = tiny_runs.command(data, tmp_path / "run", *ALL, "checkpoint.every=99")
    for code, said in run_all([Case("two", 2, str(tmp_path / "said"), arguments)])["two"]:
        assert code == 0, said
    assert losses(tmp_path / "run") == pytest.approx(losses(whole), rel=1e-5)
    one, two = (store.read_weights(store.checkpoint_path(run, STEPS)) for run in (whole, tmp_path / "run"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)
