"""Runs on each layout: what they say of it, how they resume, what they are evaluated on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_runs import as_version_02_left_it, make_data, metric_lines, small_config, stop_at, weights
from torch import Tensor

from electra.batches.sequences import Spans
from electra.errors import ConfigError, DataError
from electra.model.encoder import Encoder
from electra.pretrain import pretrain
from electra.shards.dataset import open_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


def test_the_packed_layout_runs_and_resumes(tmp_path: Path, data: Path) -> None:
    config = small_config("data.layout=packed", "train.steps=6")
    once = pretrain(config, data=data, out=tmp_path / "once")
    stop_at(4, config, data=data, out=tmp_path / "twice")
    twice = pretrain(config, data=data, out=tmp_path / "twice")
    assert weights(once) == weights(twice)
    tokens = [line["tokens"] for line in metric_lines(once) if line["kind"] == "train"]
    assert tokens == [8 * 32 * step for step in range(1, 7)], "no padding"


@pytest.mark.parametrize("layout", ["packed", "sentences", "paper-official"])
def test_only_documents_of_packed_rows_are_kept_apart(
    layout: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every network, in steps and in evaluation."""
    spanned: list[bool] = []
    plain = Encoder.forward

    def watched(self: Encoder, x: Tensor, lengths: Tensor | None, keys: Tensor | None, spans: Spans | None) -> Tensor:
        spanned.append(spans is not None)
        return plain(self, x, lengths, keys, spans)

    monkeypatch.setattr(Encoder, "forward", watched)
    pretrain(small_config(f"data.layout={layout}", "train.steps=5"), data=data, out=tmp_path / "run")
    assert len(spanned) > 4 and set(spanned) == {layout == "packed"}


def test_a_run_from_before_resumes_on_its_own_layout(
    tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its config.toml says `paper`, then the default's name; the command that began it does not say anything."""
    once = pretrain(small_config("data.layout=paper-official"), data=data, out=tmp_path / "once")
    run = tmp_path / "run"
    stop_at(7, small_config("data.layout=paper-official"), data=data, out=run)
    stored = (run / "config.toml").read_text()
    former = stored.replace('"paper-official"', '"paper"').replace("short_length = 0\n", "")
    assert former.count('layout = "paper"\n') == 1
    as_version_02_left_it(run, former)
    capfd.readouterr()
    assert pretrain(small_config(), data=data, out=run) == run
    said = capfd.readouterr().err
    assert f"{run} began with data.layout=paper-official, then the default, and goes on with it" in said
    assert weights(run) == weights(once)
    with pytest.raises(ConfigError, match="data.layout paper-official -> packed"):
        pretrain(small_config("data.layout=packed"), data=data, out=run)


def test_a_layout_that_discards_much_is_warned_of(
    tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pretrain(
        small_config("data.layout=paper-official", "data.length=8", "train.steps=5"), data=data, out=tmp_path / "a"
    )
    said = capfd.readouterr().err
    assert re.search(r"warning: data.layout=paper-official discards [1-9]\d\.\d% of the tokens: what exceeds", said)
    pretrain(small_config("data.length=8", "train.steps=5"), data=data, out=tmp_path / "b")
    said = capfd.readouterr().err
    assert "the sentences layout keeps 100.0% of the tokens" in said and "warning" not in said


def test_held_out_rows_are_the_same_whatever_a_run_learns_from(tmp_path: Path, data: Path) -> None:
    """And over a run: an evaluation at step 0 of any run with the same weights has the same figures."""
    found = []
    for number, changes in enumerate([(), ("data.short=0.5", "data.single_segment=0.9", "data.short_length=20")]):
        run = pretrain(small_config("train.steps=5", *changes), data=data, out=tmp_path / str(number))
        found.append(next(line for line in metric_lines(run) if line["kind"] == "eval"))
    assert found[0] == found[1] and found[0]["step"] == 0


def test_too_little_data_is_one_line_that_names_the_part(tmp_path: Path, data: Path) -> None:
    parts = open_data(data)
    between = (parts.train.n_tokens + parts.held_out.n_tokens) // 2
    for length in (between, 50_000):  # a row of the first length is filled by the training text alone
        overrides = ["data.layout=packed", f"data.length={length}", f"model.positions={length}"]
        with pytest.raises(DataError, match="held-out data: holds no whole sequence"):
            pretrain(small_config(*overrides), data=data, out=tmp_path / str(length))
