"""What went wrong in other implementations and must not here; more of these stand near the parts that they test."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from sklearn.metrics import f1_score
from tiny import OPS, Trainer, make_electra, make_objective, ragged_rows, tiny_config

from electra.batches.sequences import unpack
from electra.config.load import preset, preset_names
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, OptimConfig
from electra.metrics.classification import f1
from electra.metrics.tagging import chunk_scores
from electra.model.electra import Electra
from electra.model.encoder import discriminator_shape, generator_shape
from electra.model.heads import DetectionHead
from electra.objective.rtd import ReplacedTokenDetection
from electra.train.schedule import learning_rate

ROOT = Path(__file__).parents[1]


def test_defect_a_seed_decides_everything_and_nothing_else_does() -> None:
    """Elsewhere the call that sets the seed was commented out, or masks came from an unseeded generator."""

    def weights(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        trainer = Trainer(replace(tiny_config(), seed=seed), micro=4)
        for step in range(2):
            torch.rand(noise)
            trainer.step(ragged_rows(8, seed=step), 1e-3)
        return trainer.master.weights.clone()

    assert torch.equal(weights(0, 1), weights(0, 2)), "the framework's generator is never read"
    assert not torch.equal(weights(0, 1), weights(1, 1))


@pytest.mark.parametrize("name", sorted(preset_names()))
def test_defect_the_rate_falls_in_a_straight_line(name: str) -> None:
    """Elsewhere it fell with the root of what was left, and the averages decayed by 0.878 and 0.974."""
    optim, total = preset(name).optim, preset(name).train.steps
    assert (optim.beta1, optim.beta2) == (0.9, 0.999)
    end = optim.decay_steps or total
    places = [optim.warmup_steps + (end - optim.warmup_steps) * part // 4 for part in range(5)]
    rates = [learning_rate(place, optim=optim, total=total) for place in places]
    for place, rate in zip(places, rates, strict=True):
        assert rate == pytest.approx(optim.lr * (end - place) / end, rel=1e-9)


def test_defect_a_tokens_logit_is_its_own() -> None:
    """Elsewhere the state of [CLS] was added to every token's and normalised before the logit."""
    head = DetectionHead(8, ops=OPS)
    states = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    other = states.clone()
    other[:, 0] += 10.0
    with torch.no_grad():
        before, after = head(states), head(other)
        assert torch.equal(before[:, 1:], after[:, 1:]) and not torch.equal(before[:, 0], after[:, 0])
        by_hand = torch.nn.functional.gelu(states @ head.dense.weight.T + head.dense.bias)
        torch.testing.assert_close(before, (by_hand @ head.score.weight.T)[..., 0] + head.score.bias)
    assert {name for name, _ in head.named_parameters()} == {
        "dense.weight", "dense.bias", "score.weight", "score.bias"
    }  # fmt: skip


def test_defect_a_generator_has_less_width_not_fewer_layers() -> None:
    """Elsewhere it had half the layers at full width."""
    assert (GeneratorConfig().width, GeneratorConfig().depth) == (0.25, 1.0)
    for name in preset_names():
        config = preset(name)
        if config.objective.name != "mlm":
            small, kept = generator_shape(config.model, config.generator), discriminator_shape(config.model)
            assert small.layers == kept.layers, name
            assert small.width <= kept.width // 2 or name == "small-plus", "the one that was released with both alike"


def test_defect_every_size_of_the_paper_is_there() -> None:
    """Elsewhere small was missing, or base and large lived in a comment."""
    sizes = {discriminator_shape(preset(name).model) for name in preset_names()}
    assert {(s.layers, s.width, s.heads, s.ffn) for s in sizes} >= {
        (12, 256, 4, 1024), (12, 768, 12, 3072), (24, 1024, 16, 4096)
    }  # fmt: skip


def test_defect_the_tests_run_by_themselves() -> None:
    """Elsewhere the test step of the continuous integration was commented out."""
    runner = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^exec make test$", runner, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    whole = r"^\t\$\(BIN\)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder$"
    assert recipe and re.search(whole, recipe[1], re.MULTILINE), "all of it, unfiltered"
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["testpaths"] == ["tests"] and options["filterwarnings"] == ["error"]
    assert not any(word.startswith(("-k", "-m", "--ignore", "--deselect")) for word in options["addopts"])


def test_defect_recall_counts_the_real_answers() -> None:
    """Elsewhere the number of real positives was taken from the predictions, so missing them cost nothing."""
    labels, guesses = [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]
    assert f1(guesses, labels) == pytest.approx(f1_score(labels, guesses)) == pytest.approx(0.4)
    assert f1([0] * 6, labels) == 0.0
    found = chunk_scores([["B-A", "O", "O"]], [["B-A", "O", "B-A"]]).micro
    assert (found.precision, found.recall, found.support, found.predicted) == (1.0, 0.5, 2, 1)


@pytest.mark.parametrize("tying", ["none", "embeddings", "all", "gdes"])
def test_defect_the_output_matrix_stays_tied_in_every_mode(tying: str) -> None:
    """Elsewhere a table was put in place after tying: the generator's output matrix went its own way."""
    width = 1.0 if tying == "all" else 0.75
    config = tiny_config(generator=GeneratorConfig(width=width, tying=tying), dropout=0.0)  # type: ignore[arg-type]
    trainer = Trainer(config, micro=8)
    model, objective = cast(Electra, trainer.model), cast(ReplacedTokenDetection, trainer.objective)
    trainer.step(ragged_rows(8), 1e-2)
    batch = unpack(ragged_rows(4))
    masked = objective.choose_masked(batch)
    absent = next(token for token in range(5, 150) if not (batch.ids_BL == token).any())
    with torch.no_grad():
        before = objective.generator.sample(model, batch, masked, dropout=False)
        model.generator_embeddings.token.weight[absent] += 3.0
        after = objective.generator.sample(model, batch, masked, dropout=False)
    # No input holds this token: what changed is its column of the output matrix, and so every sum.
    assert not torch.equal(before.logp_MV[:, absent], after.logp_MV[:, absent])
    tables = {id(p) for p in model.parameters() if p.ndim == 2 and p.shape[0] == 150}
    assert len(tables) == (2 if tying in ("none", "gdes") else 1), "no third table"


def test_defect_no_position_is_drawn_twice_and_no_ids_are_averaged() -> None:
    """In the released code 7 % of the positions are, and get the mean of two unrelated ids."""
    assert MaskingConfig().policy == "without_replacement"
    config = tiny_config(masking=MaskingConfig(rate=0.5))
    model, objective = make_electra(config), cast(ReplacedTokenDetection, make_objective(config))
    batch = unpack(ragged_rows(40))
    masked = objective.choose_masked(batch)
    samples = objective.generator.sample(model, batch, masked, dropout=False)
    sampled_BM = samples.sampled_M.view(masked.used_BM.shape)
    corrupted_ids = objective.evaluate(model, batch).corrupted_ids_BL
    assert corrupted_ids is not None
    for row in range(40):
        places = masked.positions_BM[row][masked.used_BM[row]].tolist()
        assert len(set(places)) == len(places)
        assert corrupted_ids[row, places].tolist() == sampled_BM[row][masked.used_BM[row]].tolist()


def test_defect_decay_and_epsilon_of_every_preset() -> None:
    """Elsewhere 0.1 and 1e-8, with bias correction; the update itself is worked out by hand in test_optim."""
    assert (OptimConfig().weight_decay, OptimConfig().eps, OptimConfig().clip) == (0.01, 1e-6, 1.0)
    for name in preset_names():
        optim = preset(name).optim
        assert (optim.weight_decay, optim.eps, optim.clip) == (0.01, 1e-6, 1.0), name
    assert Config().objective.rtd_weight == 50 and Config().masking.masked_share == 0.85
