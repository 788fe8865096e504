"""A wall clock that jumps by an hour, both ways, changes nothing: budgets and lines follow the monotonic one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import metric_lines, small_config, steps_take, weights

from electra.pretrain import pretrain
from electra.train.metrics_file import read_lines

SRC = Path(__file__).parents[1] / "src" / "electra"
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_data(tmp_path_factory.mktemp("clock") / "data")


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every look at the wall clock finds it an hour earlier or later."""
    real, looks = time.time, iter(range(10**9))

    def jumps() -> float:
        return real() + HOUR_S * (-1) ** next(looks)

    monkeypatch.setattr(time, "time", jumps)
    monkeypatch.setattr(time, "time_ns", lambda: round(jumps() * 1e9))
    yield


@pytest.mark.usefixtures("jumping")
def test_promise_04_a_clock_that_jumps_changes_no_run(data: Path, tmp_path: Path) -> None:
    config = small_config()
    assert abs(time.time() - time.time()) > HOUR_S
    jumped = pretrain(config, data=data, out=tmp_path / "jumped")
    for path in (*data.rglob("*.tokens"), *data.rglob("*.json")):  # as if written an hour from now
        os.utime(path, (time.time() + HOUR_S,) * 2)
    again = pretrain(config, data=data, out=tmp_path / "again")
    assert weights(jumped) == weights(again) and metric_lines(jumped) == metric_lines(again)


@pytest.mark.usefixtures("jumping")
def test_promise_11_a_time_budget_does_not_follow_the_wall_clock(data: Path, tmp_path: Path) -> None:
    with steps_take(0.05):
        run = pretrain(small_config("train.max_minutes=0.02", "train.steps=1000000"), data=data, out=tmp_path / "run")
    times = [line["time_s"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"]
    assert times == pytest.approx([0.05 * (1 + step) for step in range(len(times))])
    assert times[-1] == pytest.approx(1.2, abs=0.051)


def test_no_module_measures_by_the_wall_clock() -> None:
    """Durations and deadlines come from `time.monotonic`, which no administrator sets."""
    wall = re.compile(r"\b(time\.time(_ns)?|datetime\.(now|utcnow)|date\.today)\(")
    modules = {path: path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    found = {str(path.relative_to(SRC)) for path, text in modules.items() if wall.search(text)}
    assert found == {"serve/run_follow.py", "tracking/run_state.py"}, "these show how old a file is, by its own clock"
    assert wall.search("began = time.time()") and not wall.search("time.timezone")
