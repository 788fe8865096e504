"""A run as it trains: its curves and its latest sample, from metrics.jsonl."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.checkpoint import store
from electra.checkpoint.folder import read_config
from electra.report.reading import Sample, sample_of
from electra.tracking.metrics_follower import MetricsFollower
from electra.train.metrics_file import FILE

MAX_POINTS = 300
CURVES = (
    "train/mlm_loss",
    "train/main_loss",
    "train/rtd_loss",
    "eval/mlm_loss",
    "eval/main_loss",
    "eval/rtd_loss",
    "eval/rtd_auc",
    "perf/tokens_per_s",
)
"""What the page draws, where the run has it."""

Points = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """How far a run is."""

    name: str
    step: int
    total_steps: int
    """0 where a time budget ends the run."""
    quiet_s: float
    """Seconds since the run last wrote a line."""
    checkpoint: int | None
    """The step of the newest checkpoint."""
    curves: dict[str, Points] = field(default_factory=dict)
    """(step, value) by metric, thinned to a few hundred points."""
    sample: Sample | None = None
    """Of the latest evaluation."""


class RunFollower:
    """Reads what a run adds to its metrics."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._config = read_config(run)
        self._lock = threading.Lock()
        self._follower = MetricsFollower(run)
        self._lines: list[dict[str, Any]] = []

    def state(self) -> RunState:
        """The run as it is now."""
        with self._lock:
            try:
                at = os.stat(self._run / FILE).st_mtime
            except FileNotFoundError:
                at = time.time()
            news = self._follower.look_at_all()
            self._lines = lines = news.lines if news.anew else self._lines + news.lines  # another thread may read these
        saved = store.steps(self._run)
        return RunState(
            name=self._run.resolve().name,
            step=max((line["step"] for line in lines), default=0),
            total_steps=0 if self._config.train.max_minutes else self._config.train.steps,
            quiet_s=max(0.0, time.time() - at),
            checkpoint=store.step_of(saved[-1]) if saved else None,
            curves=_curves(lines),
            sample=next(filter(None, map(sample_of, reversed(lines))), None),
        )


def _curves(lines: list[dict[str, Any]]) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for name in CURVES:
        points = [(line["step"], float(line[name])) for line in lines if _is_figure(line, name)]
        if points:
            found[name] = thinned(points)
    return found


def _is_figure(line: dict[str, Any], name: str) -> bool:
    kind = "eval" if name.startswith("eval/") else "train"
    return line["kind"] == kind and line.get(name) is not None


def thinned(points: Points, *, most: int = MAX_POINTS) -> Points:
    """At most `most` points: means over equal numbers of them; the last one stays as it is."""
    if len(points) <= most:
        return points
    count = most - 1
    made: Points = []
    for number in range(count):
        part = points[number * (len(points) - 1) // count : (number + 1) * (len(points) - 1) // count]
        made.append((part[-1][0], sum(value for _, value in part) / len(part)))
    return [*made, points[-1]]
