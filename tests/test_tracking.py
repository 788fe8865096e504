"""Tracking and watching: TensorBoard's own reader finds what metrics.jsonl holds, once, however the run went."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import one_process
import pytest
import tiny_runs
from click.testing import CliRunner
from tiny_runs import STEPS, make_data, small_config, stop_at

from electra.checkpoint import store
from electra.cli import main
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError
from electra.pretrain import pretrain
from electra.tracking import attach, run_state
from electra.tracking.metrics_follower import MetricsFollower
from electra.tracking.run_state import STILL_S, Liveness
from electra.tracking.sinks import figures_of
from electra.tracking.terminal_view import RunView, curve
from electra.train.metrics_file import FILE, read_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def config() -> Config:
    return small_config("track=tensorboard")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was not tracked."""
    return pretrain(small_config(), data=data, out=tmp_path_factory.mktemp("finished") / "run")


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every point that TensorBoard's own reader finds."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every point of metrics.jsonl; event files hold fp32."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in read_lines(run / FILE):
        for name, value in line.items():
            if line["kind"] != "sample" and "/" in name and value is not None:
                found.setdefault(name, []).append((line["step"], pytest.approx(value, rel=1e-6)))
    return found


def test_a_tracked_run_has_every_point_once(tmp_path: Path, data: Path, config: Config) -> None:
    run = pretrain(config, data=data, out=tmp_path / "run")
    assert points(run) == expected(run)
    assert [step for step, _ in points(run)["train/loss"]] == list(range(1, STEPS + 1))


def test_points_after_the_checkpoint_resumed_from_are_not_doubled(tmp_path: Path, data: Path, config: Config) -> None:
    run = tmp_path / "run"
    stop_at(7, config, data=data, out=run)
    assert [step for step, _ in points(run)["train/loss"]] == list(range(1, 8))
    shutil.rmtree(store.checkpoint_path(run, 7))  # as if killed: it goes on from step 5
    pretrain(config, data=data, out=run)
    assert points(run) == expected(run)
    assert [step for step, _ in points(run)["train/loss"]] == list(range(1, STEPS + 1))


def test_attached_late_and_again(tmp_path: Path, finished: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    for _ in range(2):
        result = CliRunner().invoke(main, ["track", str(run), "--to", "tensorboard", "--once"])
        assert result.exit_code == 0 and f"tensorboard --logdir {run}" in result.stdout
        assert points(run) == expected(run)


def test_tracking_may_begin_with_a_resume(tmp_path: Path, data: Path, config: Config) -> None:
    stop_at(7, small_config(), data=data, out=tmp_path / "run")
    run = pretrain(config, data=data, out=tmp_path / "run")
    assert points(run) == expected(run)


def test_a_sink_that_fails_does_not_end_the_run(
    tmp_path: Path, data: Path, config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    stop_at(7, config, data=data, out=run)
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").write_text("in the way")
    pretrain(config, data=data, out=run)
    said = capfd.readouterr().err
    assert said.count("warning: tracking ended: ") == 1
    assert f"`electra track {run} --to tensorboard` catches up" in said
    assert store.checkpoint_path(run, STEPS).is_dir()


def test_a_missing_package_is_one_line(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ConfigError, match=r"track: this needs the package wandb \(.* -m pip install 'electra\[track\]'\)"
    ):
        attach.track(run, to="wandb", follow=False)


def test_promise_20_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for command in (["watch"], ["track", "--to", "tensorboard"]):
        result = CliRunner().invoke(main, [*command, str(tmp_path)])
        assert result.exit_code == CheckpointError.exit_code and "holds no pre-training run" in result.stderr


def test_a_run_that_tracks_itself_is_not_tracked_twice(
    tmp_path: Path, data: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    stop_at(2, config, data=data, out=run)
    monkeypatch.setattr(run_state, "STILL_S", 1e6)
    with pytest.raises(ConfigError, match="--to: .* is being trained with track=tensorboard"):
        attach.track(run, to="tensorboard", follow=False)


def test_wandb_offline_gets_each_step_once(
    tmp_path: Path, data: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = shutil.copytree(finished, tmp_path / "run")
    sent: list[dict[str, Any]] = []
    log = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda self, values: (sent.append(values), log(self, values)))
    for _ in range(2):
        attach.track(run, to="wandb", follow=False)
    figures = [{"step": line["step"], **figures_of(line)} for line in read_lines(run / FILE) if figures_of(line)]
    assert sent == figures
    assert len({path.name.rpartition("-")[2] for path in (run / "wandb").glob("offline-run-*")}) == 1


def line(step: int) -> bytes:
    return b'{"kind": "train", "step": %d, "train/loss": 1.5}\n' % step


def test_a_follower_gives_whole_lines_once(tmp_path: Path) -> None:
    follower = MetricsFollower(tmp_path)
    assert follower.look() == (False, [])
    (tmp_path / FILE).write_bytes(line(1) + line(2)[:9])
    assert [one["step"] for one in follower.look().lines] == [1]
    assert follower.look() == (False, [])
    with (tmp_path / FILE).open("ab") as out:
        out.write(line(2)[9:] + b"not json\n" + line(3))
    assert [one["step"] for one in follower.look_at_all().lines] == [2, 3]


@pytest.mark.parametrize("steps", [[1], [1, 4], [1, 4, 5, 6], []])
def test_a_follower_sees_a_file_that_begins_anew(steps: list[int], tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(line(1) + line(2) + line(3))
    follower = MetricsFollower(tmp_path)
    follower.look()
    aside = tmp_path / "aside"
    aside.write_bytes(b"".join(map(line, steps)))
    os.replace(aside, tmp_path / FILE)
    anew, lines = follower.look_at_all()
    assert anew and [one["step"] for one in lines] == steps


def test_a_run_is_alive_while_its_time_is_noted(tmp_path: Path) -> None:
    (tmp_path / "time.json").write_text("{}")
    os.utime(tmp_path / "time.json", (1e9, 1e9))
    now = 0.0
    liveness = Liveness(tmp_path, now=lambda: now)
    assert not liveness.alive()
    os.utime(tmp_path / "time.json", (1e9 + 1, 1e9 + 1))
    assert liveness.alive()
    now = STILL_S + 1
    assert not liveness.alive()


def test_a_curve_is_drawn_from_low_to_high() -> None:
    assert curve([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁  8 -> 1"
    assert curve([1, 3, 5, 7], 2) == "▁█  2 -> 6"
    assert curve([2.0], 8) == "▁  2 -> 2" and curve([], 8) == ""


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_finished_run_is_shown(width: int, finished: Path) -> None:
    view = RunView(finished)
    view.look()
    lines = view.lines(width)
    assert view.state == "finished" and view.step == STEPS
    assert all(len(line) <= width for line in lines)
    if width == 200:
        assert lines[0] == f"{finished}  tiny, rtd  finished" and f"step {STEPS}/{STEPS} (100%)" in lines[1]
        last = [line for line in read_lines(finished / FILE) if line["kind"] == "train"][-1]
        assert f"loss {last['train/loss']:.3f}" in lines[2] and "tok/s" in lines[2]
        assert lines[5].startswith(f"step {STEPS}: held-out mlm") and lines[6].startswith("  sample: [CLS]")


def test_a_stopped_run_is_shown_with_the_time_left(tmp_path: Path, data: Path) -> None:
    stop_at(7, small_config(), data=data, out=tmp_path / "run")
    os.utime(tmp_path / "run" / "time.json", (1e9, 1e9))
    result = CliRunner().invoke(main, ["watch", str(tmp_path / "run")])
    assert result.exit_code == 0 and "tiny, rtd  stopped\n" in result.stdout
    assert f"step 7/{STEPS} (58%)" in result.stdout and " left\n" in result.stdout


def test_a_run_of_another_process_is_followed_to_its_end(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "STILL_S", 120.0)
    run = tmp_path / "run"
    process = tiny_runs.start(tiny_runs.command(data, run), one_process.program())
    tiny_runs.wait_for(lambda: (run / FILE).exists() and (run / "time.json").exists(), process)
    result = CliRunner().invoke(main, ["watch", str(run)])
    assert process.wait(timeout=90) == 0
    assert result.exit_code == 0 and "tiny, rtd  finished\n" in result.stdout
    process.stdout.close()  # type: ignore[union-attr]


def test_figures_that_are_not_numbers_are_left_out() -> None:
    found = figures_of({"kind": "train", "step": 3, "time_s": 1.0, "train/loss": 2, "perf/mfu": None})
    assert found == {"train/loss": 2.0} and math.isfinite(found["train/loss"])
    assert figures_of({"kind": "sample", "step": 3, "a/b": 1}) == {}
