"""Warm-up of short runs: by minutes, by hand, and of runs that began before it was a share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import as_version_02_left_it, make_data, metric_lines, small_config, steps_take, stop_at, weights

from electra.checkpoint import store
from electra.config.load import load
from electra.fsio import read_json
from electra.pretrain import pretrain

FIXED = [text for text in tiny_runs.SMALL if not text.startswith(("optim.warmup_steps", "train.steps"))]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


def test_defect_a_run_of_minutes_leaves_its_warm_up(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset's 300 steps of warm-up were longer than such a run: the rate only ever rose."""
    config = load("tiny", overrides=[*FIXED, "train.max_minutes=0.1", "train.steps=290"])
    with steps_take(0.03):
        out = pretrain(config, data=data, out=tmp_path / "run")
    total = read_json((store.latest(out) or out) / "state.json")["total_steps"]
    rates = [line["optim/lr"] for line in metric_lines(out) if line["kind"] == "train"]
    top = rates.index(max(rates))
    assert top <= 0.15 * total + 10 and max(rates) > 0.5 * config.optim.lr
    assert "steps in 0.1 minutes, " in capsys.readouterr().err


def test_a_warm_up_set_by_hand_that_time_does_not_allow_is_named(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config("train.max_minutes=0.01", "train.steps=100000", "optim.warmup_steps=90000")
    with steps_take(0.03):
        pretrain(config, data=data, out=tmp_path / "run")
    assert "warning: the run ends inside its warm-up" in capsys.readouterr().err


def test_a_run_begun_before_warm_up_had_a_share_goes_on_as_it_began(tmp_path: Path, data: Path) -> None:
    """Its config.toml lacks the key, and its command does not name the steps."""
    whole = load("tiny", overrides=[*FIXED, "train.steps=12", "optim.warmup_steps=9", "optim.warmup_share=1"])
    begun = pretrain(whole, data=data, out=tmp_path / "whole")
    out = tmp_path / "run"
    stop_at(6, whole, data=data, out=out)
    old = [line for line in (out / "config.toml").read_text().splitlines() if not line.startswith("warmup_share")]
    as_version_02_left_it(out, "\n".join(old) + "\n")
    pretrain(replace(whole, optim=replace(whole.optim, warmup_share=0.1)), data=data, out=out)
    assert weights(out) == weights(begun)
