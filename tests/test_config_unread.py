"""Which settings a run does not read: the table against what settings do to weights and losses, and the warning."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tiny import OPS, RESOURCES, SPECIALS, VOCAB, Documents, numbered, ragged_rows, tiny_config
from torch import Tensor

from electra.api import pretrain
from electra.batches.order import Cursor
from electra.batches.source import Source
from electra.cli import main
from electra.config.keys import flatten
from electra.config.load import change, load, preset_names
from electra.config.schema import Config, DataConfig, GeneratorConfig, MaskingConfig, ObjectiveConfig, TrainConfig
from electra.config.unread import RULES, unread, unread_settings
from electra.errors import ConfigError, DataError
from electra.model.electra import build_model
from electra.objective.registry import Resources, build_stages
from electra.train.optim import make_update, scales
from electra.train.parallel import World
from electra.train.schedule import step_rows
from electra.train.stages import plan_stages
from electra.train.state import Master
from electra.train.step import Stepper

SECTIONS = ("objective.", "generator.", "masking.", "model.dropout_share")
OTHERS: dict[str, tuple[Any, ...]] = {
    "generator.kind": ("transformer", "unigram", "uniform"),
    "generator.width": (1.0,),
    "generator.depth": (0.5,),
    "generator.tying": ("embeddings", "none", "gdes"),
    "generator.temperature": (3.0,),
    "generator.temperature_start": (4.0,),
    "generator.temperature_share": (0.3,),
    "generator.unigram_share": (0.9,),
    "generator.disallow_correct": (True,),
    "generator.dropout_scale": (0.5,),
    "generator.lr_scale": (0.5,),
    "generator.clip": (0.001,),
    "objective.mlm_weight": (0.5,),
    "objective.rtd_weight": (5.0,),
    "objective.base_rate_start": (True,),
    "objective.unigram_start": (True,),
    "objective.correction_weight": (1.0,),
    "objective.overlap_weight": (1.0,),
    "objective.contrastive_weight": (1.0,),
    "objective.contrastive_share": (0.6,),
    "masking.rate": (0.4,),
    "masking.rate_start": (0.5,),
    "masking.policy": ("official",),
    "masking.masked_share": (0.2,),
    "masking.rare": (1.0,),
    "model.dropout_share": (0.2,),
}
"""Values that differ from those of every case below, or are skipped where they do not."""

HALF = GeneratorConfig(width=0.5)
CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"objective": ObjectiveConfig(name=name)}
        for name in ("rtd", "rtd-15", "replace-mlm", "all-tokens-mlm", "mlm")
    },
    "electric": {
        "objective": ObjectiveConfig(name="electric"),
        "generator": GeneratorConfig(kind="two-tower", width=0.5),
    },
    "two-tower": {"generator": GeneratorConfig(kind="two-tower", width=0.5)},
    "unigram": {"generator": GeneratorConfig(kind="unigram")},
    "uniform": {"generator": GeneratorConfig(kind="uniform")},
    "unigram-replace": {
        "objective": ObjectiveConfig(name="replace-mlm"),
        "generator": GeneratorConfig(kind="unigram"),
    },
    "unigram-correction": {
        "objective": ObjectiveConfig(correction_weight=2.0),
        "generator": GeneratorConfig(kind="unigram"),
    },
    "all": {"generator": GeneratorConfig(width=1.0, tying="all")},
    "warm": {"generator": replace(HALF, temperature_start=2.0)},
    "overlap": {"objective": ObjectiveConfig(overlap_weight=2.0)},
    "contrastive": {"objective": ObjectiveConfig(contrastive_weight=2.0)},
    "no-dropout": {"dropout": 0.0},
}


def outcome(config: Config) -> str:
    """A digest of the first weights, of two steps' losses and of the weights after them."""
    frequencies: Tensor = torch.arange(VOCAB) ** 2 + 1
    progress = torch.full((), 0.25, dtype=torch.float64)
    model = build_model(config, ops=OPS, frequencies=lambda: frequencies)
    resources = Resources(SPECIALS, OPS, lambda: frequencies, progress=progress)
    objective = build_stages(config, resources)[-1]
    scale = scales(config.optim, config.generator)
    master = Master(model, compute=torch.float32, device=torch.device("cpu"), scale=scale)
    step = Stepper(
        model,
        master,
        make_update(master, config.optim, config.generator, ops=OPS),
        objective,
        ops=OPS,
        world=World(),
        micro_batch=32,
        compiled=False,
        captured=False,
        separator=None,
        progress=progress,
        masking=config.masking,
        dropout_share=config.model.dropout_share,
    )
    found = hashlib.sha256(master.weights.numpy().tobytes())
    for seed in range(2):
        step.place(1 + seed, total=4)
        step(ragged_rows(32, seed=seed), 1e-3)
        found.update(repr(sorted(objective.means(step.read()).items())).encode())
    found.update(master.weights.numpy().tobytes())
    return found.hexdigest()


WIDTH = tiny_config().model.width
OTHER_ROWS: dict[str, Any] = {
    "data.single_segment": 0.9,
    "data.short": 0.9,
    "data.short_length": 6,
    "data.length_share": 0.2,
    "data.copies_share": 0.2,
    "train.batch_share": 0.9,
    "train.generator_steps": 3,
    "train.start_from_generator": False,
}
ROWS: dict[str, dict[str, Any]] = {
    "sentences": {"data.short": 0.5},
    "no-short": {"data.short": 0.0},
    "paper-official": {"data.layout": "paper-official"},
    "packed": {"data.layout": "packed"},
    "length": {"data.length_start": 8},
    "same-length": {"data.length_start": 16},
    "batch": {"train.batch_start": 2},
    "same-batch": {"train.batch_start": 4},
    "copies": {"data.copies": 0.9},
    "two-stage": {"train.algorithm": "two-stage", "generator.width": 1.0, "model.heads": 1, "model.ffn": 4 * WIDTH},
}


def rows_of(config: Config) -> str:
    """A digest of the rows of all steps of a run, and of the weights that each of its stages begins with."""
    found, size = hashlib.sha256(), config.train.batch_size
    split = Documents(numbered([[5, 9, 7, 3], [2, 2, 14]] * 30))
    made = Source(
        split,
        config.data,
        SPECIALS,
        seed=3,
        batch_size=size,
        device=torch.device("cpu"),
        share=lambda count: slice(count),
    )
    at = partial(step_rows, data=config.data, train=config.train, elapsed_s=0.0)
    with closing(made.batches(0, Cursor(), rows_at=at)) as batches:
        for _, batch in zip(range(config.train.steps), batches, strict=False):
            found.update(batch.rows.numpy().tobytes())
    model = build_model(config, ops=OPS)
    for stage in plan_stages(config, RESOURCES):
        stage.begin(model)
        found.update(repr(stage.start).encode())
        for parameter in model.parameters():
            found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def row_case(name: str) -> Config:
    config = tiny_config(generator=HALF, data=DataConfig(length=16), train=TrainConfig(steps=10, batch_size=4))
    return change(config, {"optim.warmup_steps": 1, **ROWS[name]})


@pytest.mark.parametrize("name", ROWS)
def test_the_table_says_what_rows_and_stages_are(name: str) -> None:
    config = row_case(name)
    before, idle = rows_of(config), unread(config)
    same = {key for key, value in OTHER_ROWS.items() if rows_of(change(config, {key: value})) == before}
    assert same == set(idle) & set(OTHER_ROWS)


def case(name: str) -> Config:
    parts = CASES[name]
    return change(tiny_config(**{"generator": HALF, **parts}), {})


@pytest.mark.parametrize("name", CASES)
def test_the_table_says_what_steps_do(name: str) -> None:
    """Each key of three sections at other values: the same bits where it is not read, others where it is."""
    config = case(name)
    before, idle, flat = outcome(config), unread(config), flatten(config)
    effects: dict[str, bool] = {}
    for key, values in OTHERS.items():
        for value in (one for one in values if one != flat[key]):
            try:
                other = change(config, {key: value})
            except ConfigError:  # refused, so that nobody needs a warning
                continue
            effects[key] = effects.get(key, False) or outcome(other) != before
    assert {key for key, effect in effects.items() if not effect} == set(idle) & set(effects)


def test_every_key_and_every_rule_is_tried() -> None:
    keys = {key for key in flatten(Config()) if key.startswith(SECTIONS)}
    assert set(OTHERS) == keys - {"objective.name"}
    for rule in RULES:
        of_rows = set(rule.keys) <= set(OTHER_ROWS)
        tried = [row_case(name) for name in ROWS] if of_rows else [case(name) for name in CASES]
        assert any(rule.applies(one) for one in tried), rule.reason
        assert of_rows or set(rule.keys) <= keys


@pytest.mark.parametrize("name", preset_names())
def test_presets_warn_of_nothing(name: str) -> None:
    """A setting that stands in the preset is not the user's, whatever else they change."""
    assert unread_settings(load(name)) == []
    assert unread_settings(load(name, overrides=["generator.kind=uniform"] if "bert" not in name else [])) == []
    assert (
        unread_settings(load(name, overrides=["data.copies=0", "model.dropout=0", "model.attention_dropout=0"])) == []
    )
    assert (
        unread_settings(load(name, overrides=["data.copies=0", "objective.overlap_weight=0", "data.layout=packed"]))
        == []
    )


def test_one_line_names_all_that_one_reason_idles() -> None:
    config = load(
        "small", overrides=["objective.name=mlm", "generator.width=0.5", "generator.clip=1", "masking.rate=0.2"]
    )
    reason = "objective.name=mlm has no generator; leave them out"
    assert unread_settings(config) == [f"generator.width, generator.clip are not read: {reason}"]
    config = load("tiny", overrides=["objective.contrastive_share=0.3"])
    assert unread_settings(config) == [
        "objective.contrastive_share is not read: objective.contrastive_weight=0 leaves no sequence alone; leave it out"
    ]
    config = load("small", overrides=["data.copies_share=0.3", "data.layout=packed", "data.short=0.2"])
    assert unread_settings(config) == [
        "data.copies_share is not read: data.copies=0 means that there are none; leave it out",
        "data.short is not read: data.layout=packed fills every row, whatever its segments; leave it out",
    ]
    config = load("tiny")
    assert unread_settings(replace(config, masking=MaskingConfig(rate=0.4), objective=load("tiny").objective)) == []


def test_commands_warn(tmp_path: Path) -> None:
    """`config show`, whose output stays TOML, and `pretrain` before it does anything."""
    settings = ["--preset", "tiny", "generator.kind=uniform", "generator.width=1"]
    warning = "warning: generator.width is not read: generator.kind=uniform has no weights to train; leave it out\n"
    shown = CliRunner().invoke(main, ["config", "show", *settings])
    assert shown.exit_code == 0 and warning in shown.stderr and "warning" not in shown.stdout
    nowhere, out = str(tmp_path / "none"), tmp_path / "run"
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(main, ["pretrain", "--data", nowhere, "--out", str(out), *settings, *more])
        assert done.exit_code == 4 and warning in done.stderr and not out.exists()


def test_the_function_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError):
        pretrain(
            tmp_path / "none", out=tmp_path / "run", settings=["objective.name=replace-mlm", "objective.rtd_weight=9"]
        )
    assert "warning: objective.rtd_weight is not read: objective.name=replace-mlm" in capsys.readouterr().err
