"""A model from transformers folders trains on as a run of ours, with its own vocabulary and sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import corpora
import pytest
import tiny_runs
from tiny_runs import losses, make_data, metric_lines, small_config, stop_at, times, weights

from electra.config.load import load
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError, DataError
from electra.fsio import read_json
from electra.interop.transfer import export_model, import_model
from electra.pretrain import pretrain


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the model comes from."""
    return pretrain(small_config(), data=data, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def folders(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both networks of a finished run as transformers folders."""
    home = tmp_path_factory.mktemp("exported")
    export_model(whole, home / "discriminator")
    export_model(whole, home / "generator", part="generator")
    return {"discriminator": home / "discriminator", "generator": home / "generator"}


def continued(run: Path, *overrides: str) -> Config:
    return load(file=run / "config.toml", overrides=tiny_runs.arguments(*overrides)[10:])


def test_an_imported_model_trains_on(
    tmp_path: Path, data: Path, whole: Path, folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "imported"
    import_model(folders["discriminator"], out, generator=folders["generator"])
    config = continued(out, "train.steps=6", "masking.policy=without_replacement")  # the masks of the run before
    pretrain(config, data=data, out=out)
    assert "starting on cpu" in capfd.readouterr().err
    assert read_json(out / "run.json")["seed"] == config.seed and load(file=out / "config.toml") == config
    before = [line for line in metric_lines(whole) if line["kind"] == "eval"][-1]
    first = [line for line in metric_lines(out) if line["kind"] == "eval"][0]
    assert first | {"step": 0, "tokens": 0} == pytest.approx(before | {"step": 0, "tokens": 0}), "the same model"
    assert weights(out)[0] == "step-00000006" and len(losses(out)) == 6
    pretrain(config, data=data, out=out)
    assert "finished at step 6" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="holds a run with another config: train.steps 6 -> 7"):
        pretrain(replace(config, train=replace(config.train, steps=7)), data=data, out=out)

    again = tmp_path / "again"
    import_model(folders["discriminator"], again, generator=folders["generator"])
    stop_at(2, config, data=data, out=again)
    pretrain(config, data=data, out=again)
    assert weights(again) == weights(out)


def test_an_imported_model_keeps_its_vocabulary_and_sizes(tmp_path: Path, data: Path, folders: dict[str, Path]) -> None:
    out = tmp_path / "imported"
    import_model(folders["discriminator"], out, generator=folders["generator"])
    before = times(out)
    config = continued(out, "train.steps=6")
    other = make_data(tmp_path / "other", vocab=corpora.write_vocab(tmp_path / "vocab.txt"))
    with pytest.raises(DataError, match=r"other: has another vocabulary than the model in .* \(prepare the text with"):
        pretrain(config, data=other, out=out)
    wide = replace(config, model=replace(config.model, ffn=256, dropout=0.0))
    with pytest.raises(ConfigError, match=r"holds another model: model.ffn 128 -> 256 \(use --config .*config.toml\)"):
        pretrain(wide, data=data, out=out)
    assert {path: at for path, at in times(out).items() if path != out} == {
        path: at for path, at in before.items() if path != out
    }


def test_an_import_without_generator_says_so(tmp_path: Path, data: Path, folders: dict[str, Path]) -> None:
    out = tmp_path / "imported"
    import_model(folders["discriminator"], out)
    config = continued(out, "train.steps=6", "generator.width=0.5")
    with pytest.raises(CheckpointError, match=r"model.safetensors: has no generator and no generator_head"):
        pretrain(config, data=data, out=out)
