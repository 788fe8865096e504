"""Pre-training that goes on from a run, an export or a released pair of folders."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from tiny_runs import arguments, make_data, metric_lines, small_config, stop_at, weights

from electra.checkpoint import store
from electra.checkpoint.tensors import read_tensors
from electra.cli import main
from electra.config.load import load
from electra.config.schema import Config
from electra.config.unread import unread_settings
from electra.errors import ConfigError, DataError
from electra.interop.continuation import continue_from, continued
from electra.interop.transfer import export_model
from electra.pretrain import pretrain
from electra.shards.dataset import open_data
from electra.train.schedule import learning_rate


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a finished run on it, and both its networks as transformers folders."""
    folder = tmp_path_factory.mktemp("continuation")
    data = make_data(folder / "data")
    pretrain(small_config(), data=data, out=folder / "run")
    export_model(folder / "run", folder / "discriminator")
    export_model(folder / "run", folder / "generator", part="generator")
    return folder


def go_on(place: Path, out: Path, model: str, *more: str) -> Result:
    command = ["pretrain", "--data", str(place / "data"), "--out", str(out), "--from", str(place / model), *more]
    return CliRunner().invoke(main, command)


def evaluations(run: Path) -> list[float]:
    return [line["eval/rtd_loss"] for line in metric_lines(run) if line["kind"] == "eval"]


def start_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(store.checkpoint_path(run, 0) / "model.safetensors")


def end_of(run: Path) -> dict[str, torch.Tensor]:
    last = store.latest(run)
    assert last is not None
    return read_tensors(last / "model.safetensors")


@pytest.mark.parametrize("source", ["run", "pair"])
def test_a_run_begins_where_the_model_stood(place: Path, tmp_path: Path, source: str) -> None:
    """Held-out loss and weights at step 0 are those that the first run ended with."""
    model, more = ("run", ()) if source == "run" else ("discriminator", ("--generator", str(place / "generator")))
    settings = () if source == "run" else arguments()
    done = go_on(place, tmp_path / "on", model, *more, *settings, "checkpoint.keep=9")
    assert done.exit_code == 0, done.output
    if source == "run":  # the folders do not say how positions were masked
        assert evaluations(tmp_path / "on")[0] == pytest.approx(evaluations(place / "run")[-1], rel=1e-6)
    first, end = start_of(tmp_path / "on"), end_of(place / "run")
    assert first.keys() == end.keys() and all(torch.equal(first[name], end[name]) for name in end)


def test_what_an_export_lacks_starts_fresh(place: Path, tmp_path: Path) -> None:
    done = go_on(place, tmp_path / "on", "discriminator", *arguments(), "checkpoint.keep=9")
    assert done.exit_code == 0, done.output
    assert "fresh, because it has none: generator, generator_head" in done.output
    first, end = start_of(tmp_path / "on"), end_of(place / "run")
    taken = {name for name, tensor in first.items() if torch.equal(tensor, end[name])}
    assert {name for name in first if not name.startswith("generator")} <= taken
    assert not any(name.endswith("up.weight") for name in taken if name.startswith("generator"))


def train_from(model: Path, out: Path, data: Path, *overrides: str) -> Path:
    start = continue_from(model, out, overrides=overrides)
    return pretrain(start.config, data=data, out=out, start=start)


def test_stopped_and_resumed_it_ends_with_the_same_bits(place: Path, tmp_path: Path) -> None:
    """And resuming needs the model no longer."""
    data, model = place / "data", tmp_path / "model"
    shutil.copytree(place / "run", model)
    train_from(model, tmp_path / "whole", data, "train.steps=9")
    start = continue_from(model, tmp_path / "parts", overrides=["train.steps=9"])
    stop_at(4, start.config, data=data, out=tmp_path / "parts", start=start)
    shutil.rmtree(model)
    again = continue_from(model, tmp_path / "parts", overrides=["train.steps=9"])
    assert again.config == start.config
    pretrain(again.config, data=data, out=tmp_path / "parts", start=again)
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")


def test_a_trained_model_goes_on_at_a_twentieth_of_its_rate(place: Path, tmp_path: Path) -> None:
    """And without what eased its beginning; what is asked for stands."""
    own = load(file=place / "run" / "config.toml")
    config = continue_from(place / "run", tmp_path / "gentle").config
    assert config == replace(own, optim=replace(own.optim, lr=own.optim.lr / 20, warmup_share=0.1))
    asked = ["optim.lr=1e-3", "masking.rate_start=0.3", "optim.warmup_steps=7"]
    config = continue_from(place / "run", tmp_path / "asked", overrides=asked).config
    assert config.optim.lr == 1e-3 and config.masking.rate_start == 0.3 and config.optim.warmup(1000) == 7
    eased = ["masking.rate_start=0.3", "generator.temperature_start=2", "generator.unigram_share=0.1"]
    eased += ["data.length_start=16", "train.batch_start=2", "optim.decay_share=0.5", "optim.warmup_share=0.05"]
    eased += [f"{key}_share=0.3" for key in ("data.length", "train.batch", "generator.temperature")]
    done = continued(load("tiny", overrides=[*eased, "data.length=32", "train.batch_size=8"]))
    assert unread_settings(done) == []
    plain = load("tiny", overrides=["data.length=32", "train.batch_size=8"])
    assert done == replace(plain, optim=replace(plain.optim, lr=plain.optim.lr / 20, warmup_share=0.05))


def test_steps_that_are_asked_for_are_taken_as_they_are(place: Path, tmp_path: Path) -> None:
    """Of warm-up, evaluations and saves: nothing else limits them, unless that is asked for too."""
    run, out = place / "run", tmp_path / "on"
    asked = ["train.steps=100", "optim.warmup_steps=40", "checkpoint.every=2", "evaluate.every=10"]
    config = continue_from(run, out, overrides=asked).config
    rates = [learning_rate(step, optim=config.optim, total=100) / config.optim.lr for step in range(100)]
    assert rates.index(max(rates)) == 40 and rates[20] == pytest.approx(0.5 * 0.8)
    assert (config.checkpoint.every, config.checkpoint.seconds) == (2, 0.0)
    assert (config.evaluate.every, config.evaluate.seconds) == (10, 0.0)
    limits = ["optim.warmup_share=0.2", "checkpoint.seconds=3", "evaluate.seconds=4"]
    config = continue_from(run, out, overrides=[*asked, *limits]).config
    assert (config.optim.warmup(100), config.checkpoint.seconds, config.evaluate.seconds) == (20, 3.0, 4.0)
    file = tmp_path / "limits.toml"
    file.write_text("optim.warmup_share = 0.2\ncheckpoint.seconds = 3.0\n")
    config = continue_from(run, out, file=file, overrides=asked).config
    assert (config.optim.warmup(100), config.checkpoint.seconds) == (40, 0.0), "as beside a preset"


def test_a_run_that_began_with_a_share_of_warm_up_goes_on_with_it(place: Path, tmp_path: Path) -> None:
    """As runs did whose command names steps of warm-up, before those were exact; another warm-up is refused."""
    out, asked = tmp_path / "on", ["train.steps=9", "optim.warmup_steps=4"]
    start = continue_from(place / "run", out, overrides=asked)
    former = replace(start.config, optim=replace(start.config.optim, warmup_share=0.1))
    stop_at(4, former, data=place / "data", out=out, start=replace(start, config=former))
    assert go_on(place, out, "run", "optim.warmup_share=1", *asked).exit_code == ConfigError.exit_code
    done = go_on(place, out, "run", *asked)
    assert done.exit_code == 0 and "resuming at step 4" in done.output, done.output
    assert load(file=out / "config.toml") == former


def test_a_model_that_went_on_itself_keeps_its_rate(place: Path, tmp_path: Path) -> None:
    """Which is a twentieth already."""
    on = train_from(place / "run", tmp_path / "on", place / "data", "train.steps=2")
    assert continue_from(on, tmp_path / "again").config.optim.lr == load(file=on / "config.toml").optim.lr


@pytest.mark.parametrize(("model", "more"), [("discriminator", ()), ("run", ("optim.lr=1e-3",))])
def test_a_model_that_went_on_at_a_whole_rate_goes_on_at_a_twentieth(
    place: Path, tmp_path: Path, model: str, more: tuple[str, ...]
) -> None:
    """Its generator began fresh, or the rate was asked for."""
    start = continue_from(place / model, tmp_path / "on", overrides=(more or ("train.batch_size=4",)))
    config = replace(start.config, train=replace(start.config.train, steps=2))
    pretrain(config, data=place / "data", out=tmp_path / "on", start=replace(start, config=config))
    again = continue_from(tmp_path / "on", tmp_path / "again").config
    assert again.optim.lr == pytest.approx(config.optim.lr / 20, rel=1e-12)


def test_a_generator_that_begins_keeps_the_rate(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = continue_from(place / "discriminator", tmp_path / "alone", overrides=["train.steps=9"])
    pair = continue_from(place / "discriminator", tmp_path / "pair", generator=place / "generator")
    rate = alone.config.optim.lr
    assert rate == pytest.approx(20 * pair.config.optim.lr, rel=1e-12)
    prepared = open_data(place / "data")
    alone.place(tmp_path / "alone", prepared.fingerprint, prepared.folder)
    assert f"for 9 steps at a peak rate of {rate:g}" in capsys.readouterr().err


def test_another_vocabulary_is_refused_and_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    """The command put right then runs as if it were the first."""
    other, out = make_data(tmp_path / "other", seed=7), tmp_path / "on"
    with pytest.raises(DataError, match=rf"has another vocabulary than {place / 'run'} \(.* --vocab {place / 'run'}"):
        train_from(place / "run", out, other, "optim.lr=1e-3")
    assert not out.exists()
    train_from(place / "run", out, place / "data", "train.steps=2")
    assert load(file=out / "config.toml").optim.lr != 1e-3


def test_steps_that_are_asked_for_replace_the_model_s_minutes(place: Path, tmp_path: Path) -> None:
    timed = tmp_path / "timed"
    pretrain(replace_minutes(small_config(), 0.02), data=place / "data", out=timed)
    assert continue_from(timed, tmp_path / "on").config.train.max_minutes == 0.02
    by_steps = continue_from(timed, tmp_path / "on", overrides=["train.steps=5"]).config.train
    assert (by_steps.steps, by_steps.max_minutes) == (5, 0.0)
    both = continue_from(timed, tmp_path / "on", overrides=["train.steps=5", "train.max_minutes=1"]).config.train
    assert (both.steps, both.max_minutes) == (5, 1.0)


def replace_minutes(config: Config, minutes: float) -> Config:
    return replace(config, train=replace(config.train, max_minutes=minutes))


def test_a_run_goes_on_from_the_model_it_began_with_alone(place: Path, tmp_path: Path) -> None:
    model, other, out = tmp_path / "model", tmp_path / "other", tmp_path / "on"
    shutil.copytree(place / "run", model)
    pretrain(replace(small_config(), seed=5), data=place / "data", out=other)
    train_from(model, out, place / "data", "train.steps=2")
    for name in (other, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=rf"began with model, not with {name} \(use another --out, or go on with"):
            continue_from(name, out, overrides=["train.steps=2"])
    moved = model.rename(tmp_path / "moved")  # the same weights by another name
    assert continue_from(moved, out, overrides=["train.steps=2"]).begun
    with pytest.raises(ConfigError, match="began with no model"):
        continue_from(model, other)


def test_a_start_that_was_placed_before_a_kill_is_used(place: Path, tmp_path: Path) -> None:
    out, overrides = tmp_path / "on", ["train.steps=2"]
    prepared = open_data(place / "data")
    start = continue_from(place / "run", out, overrides=overrides)
    start.place(out, prepared.fingerprint, prepared.folder)
    train_from(place / "run", out, place / "data", *overrides)
    start = continue_from(place / "run", tmp_path / "other", overrides=overrides)
    start.place(tmp_path / "other", prepared.fingerprint, prepared.folder)
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):  # begun by another command
        train_from(place / "run", tmp_path / "other", place / "data", "train.steps=3")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--preset", "tiny"), "leave --preset out"),
        (("model.width=32",), "model.*"),
        (("objective.name=mlm",), "objective.name"),
        (("--generator", "somewhere"), "own generator"),
    ],
)
def test_what_the_model_decides_cannot_be_changed(
    place: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    done = go_on(place, tmp_path / "on", "run", *more)
    assert done.exit_code != 0 and not (tmp_path / "on").exists()
    assert message in str(done.exception) + done.output


def test_a_folder_without_a_model_is_refused(place: Path, tmp_path: Path) -> None:
    done = go_on(place, tmp_path / "on", "data")
    assert done.exit_code != 0 and "run folder" in str(done.exception) + done.output


def test_a_generator_alone_is_refused(place: Path, tmp_path: Path) -> None:
    command = ["pretrain", "--data", str(place / "data"), "--out", str(tmp_path / "on"), "--generator", str(place)]
    done = CliRunner().invoke(main, command)
    assert isinstance(done.exception, ConfigError | SystemExit) and "--from" in str(done.exception) + done.output
