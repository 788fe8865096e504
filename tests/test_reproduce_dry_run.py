"""`electra reproduce --dry-run`: what it prints is what would run, and nothing is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny_runs import make_data, times

from electra.cli import main
from electra.config.load import load
from electra.config.schema import Config
from electra.reproduce.dry_run import describe
from electra.reproduce.execute import DIVERGED, claim, make_request
from electra.reproduce.experiments import EXPERIMENTS, experiment
from electra.reproduce.plan import plan
from electra.reproduce.scale import SCALES


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("dry") / "data")


def call(*given: object) -> Any:
    result = CliRunner().invoke(main, ["reproduce", *map(str, given)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rebuilt(text: str) -> dict[str, Config]:
    """The configurations that the printed settings give, by name."""
    found = re.search(r"all of them: preset (\S+) ?(.*)", text)
    assert found
    configs = {}
    for name, own, length in re.findall(r"^\d+\. (\S+): .*\n   settings  (.*)\n   length    (.*)", text, re.MULTILINE):
        settings = [word for word in f"{found[2]} {own}".split() if "=" in word]
        steps = re.search(r"([\d,]+) steps of", length)
        minutes = re.match(r"([\d.]+) minute", length)
        assert steps
        settings += [f"train.steps={steps[1].replace(',', '')}", f"train.max_minutes={minutes[1] if minutes else 0}"]
        configs[name] = load(found[1], overrides=settings)
    return configs


@pytest.mark.parametrize("scale", ["cpu-smoke", "gpu-10min", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_settings_give_the_configurations(data: Path, tmp_path: Path, name: str, scale: str) -> None:
    before = times(data)
    done = call(name, "--data", data, "--out", tmp_path / "out", "--scale", scale, "--dry-run", "seed=3")
    assert done.exit_code == 0 and list(tmp_path.iterdir()) == [] and times(data) == before
    planned = plan(experiment(name), SCALES[scale], vocab_size=200, overrides=["seed=3"])
    found = rebuilt(done.output)
    assert list(found) == [one.name for one in planned]
    for one in planned:
        of_preset = load(one.config.preset).model.vocab_size
        assert found[one.name] == replace(one.config, model=replace(one.config.model, vocab_size=of_preset))
        assert f"{tmp_path / 'out' / 'runs' / one.name}: to be run\n" in f"{done.output}\n"


def test_minutes_scores_and_what_is_left_out(data: Path, tmp_path: Path) -> None:
    request = make_request(
        "learning-rate", data=data, scale="gpu-10min", out=tmp_path / "out", budget="minutes", seeds=2
    )
    shown = describe(request, together=2)
    assert "alike in minutes" in shown and "6 configurations, 2 at a time on " in shown
    assert "length    1.2 minutes, at most 15,625 steps of 128 x 128 tokens, 256M in all\n" in shown
    assert "scored    at the end, on passages with seeds 0, 1: 2 fine-tuning runs\n" in shown
    assert "left out: bert-1e-4 (--only bert-1e-4 runs it)" in shown
    assert rebuilt(shown)["bert-2e-4"].train.max_minutes == 1.2
    small = make_request("small-models", data=data, scale="cpu-smoke", out=tmp_path / "out", only=["electra-small"])
    assert "scored    at step 3, step 6, step 9, step 21, the end, on" in describe(small)
    assert "40 steps of 16 x 64 tokens, 41k in all, 2.94e+10 FLOPs by the paper's rules" in describe(small)


def test_how_far_a_run_is_and_another_experiment_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    request = make_request("lambda", data=data, scale="cpu-smoke", out=out, only=["lambda-1", "lambda-50"])
    claim(request)
    run = out / "runs" / "lambda-1"
    run.mkdir(parents=True)
    for state, file, content in (
        ("to be run", "config.toml", ""),
        ("at step 7", "metrics.jsonl", '{"step": 7}\n'),
        ("trained, 1 fine-tuning run missing", "metrics.jsonl", '{"step": 40}\n'),
        ("diverged", DIVERGED, "at step 3\n"),
    ):
        (run / file).write_text(content)
        assert f"{run}: {state}\n" in f"{describe(request)}\n"
        assert f"{out / 'runs' / 'lambda-50'}: to be run\n" in f"{describe(request)}\n"
    before = times(out)
    refused = call("mask-rate", "--data", data, "--out", out, "--dry-run")
    assert refused.exit_code == 2 and "holds another experiment" in refused.output and times(out) == before
