"""A run as a few lines of text for a terminal: where it stands, losses, speed, time left, the last evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from electra.checkpoint import store
from electra.errors import CheckpointError
from electra.fsio import read_object
from electra.progress import BAR_WIDTH, clock
from electra.terminal import visible
from electra.tracking.metrics_follower import MetricsFollower
from electra.tracking.run_state import Liveness, config_of
from electra.train.clock import elapsed_seconds
from electra.train.metrics_file import evaluation_line, sample_line, status

EVERY_S = 1.0
CURVE_WIDTH = 40
_BLOCKS = "▁▂▃▄▅▆▇█"


class RunView:
    """What the folder of a run says, kept up to date by `look`."""

    def __init__(self, run: Path) -> None:
        self.run, self.config = run, config_of(run)
        self._follower, self._liveness = MetricsFollower(run), Liveness(run)
        self._train: list[dict[str, Any]] = []
        self._evaluation: dict[str, Any] = {}
        self._sample: dict[str, Any] = {}

    def look(self) -> list[dict[str, Any]]:
        """Read what is new in the folder; the new lines of metrics."""
        anew, lines = self._follower.look_at_all()
        if anew:
            self._train, self._evaluation, self._sample = [], {}, {}
        for line in lines:
            if line["kind"] == "train":
                self._train.append(line)
            elif line["kind"] == "eval":
                self._evaluation = line
            elif line["kind"] == "sample":
                self._sample = line
        return lines

    @property
    def step(self) -> int:
        return max((line["step"] for line in (*self._train[-1:], self._evaluation) if line), default=0)

    @property
    def finished(self) -> bool:
        """Whether the newest checkpoint is the end of the run."""
        newest = next(reversed(store.steps(self.run)), None)
        if newest is None:
            return False
        try:
            return read_object(newest / store.STATE, error=CheckpointError).get("total_steps") == store.step_of(newest)
        except CheckpointError:  # a checkpoint that is being removed, or damaged: the run itself names it
            return False

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        return "training" if self._liveness.alive() else "stopped"

    def lines(self, width: int) -> list[str]:
        """Everything, in lines of at most so many columns."""
        config = self.config
        shown = [f"{self.run}  {config.preset}, {config.objective.name}  {self.state}", self._progress()]
        if self._train:
            last = self._train[-1]
            shown += [status(last), _details(last), f"loss {curve(self._losses(), CURVE_WIDTH)}"]
        if self._evaluation:
            figures = {key.removeprefix("eval/"): value for key, value in self._evaluation.items() if "/" in key}
            if all(value is not None for value in figures.values()):
                shown.append(evaluation_line(self._evaluation["step"], figures))
        if self._sample:
            shown.append(sample_line(self._sample))
        return [_cropped(visible(line), width) for line in shown]

    def _losses(self) -> list[float]:
        return [value for line in self._train if (value := line.get("train/loss")) is not None]

    def _progress(self) -> str:
        train, elapsed_s = self.config.train, elapsed_seconds(self.run)
        if train.max_minutes:
            share, left_s = min(1.0, elapsed_s / (60 * train.max_minutes)), 60 * train.max_minutes - elapsed_s
            parts = [f"step {self.step:,}, {clock(elapsed_s)} of {clock(60 * train.max_minutes)} ({share:.0%})"]
        else:
            speed = self._train[-1].get("perf/steps_per_s") if self._train else None
            share, left_s = self.step / train.steps, (train.steps - self.step) / speed if speed else math.inf
            parts = [f"step {self.step:,}/{train.steps:,} ({share:.0%})", clock(elapsed_s)]
        if not self.finished and math.isfinite(left_s):
            parts.append(f"{clock(left_s)} left")
        done = int(BAR_WIDTH * share)
        return f"{'━' * done}{'─' * (BAR_WIDTH - done)}  {', '.join(parts)}"


def watch(run: Path, *, show: Callable[[RunView, list[dict[str, Any]]], None], once: bool) -> None:
    """Call `show` with the view and its new lines every second, until the run is finished or no longer trained."""
    view = RunView(run)
    while True:
        lines = view.look()
        over = once or view.state != "training"
        show(view, lines)
        if over:
            return
        time.sleep(EVERY_S)


def log_lines(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of metrics as a log shows them."""
    for line in lines:
        if line["kind"] == "train":
            yield f"step {line['step']}: {status(line)}"
        elif line["kind"] == "eval" and None not in line.values():
            yield evaluation_line(line["step"], {k.removeprefix("eval/"): v for k, v in line.items() if "/" in k})


def curve(values: list[float], width: int) -> str:
    """Values as a curve of blocks in at most so many columns, each the mean of its share; from lowest to highest."""
    if not values:
        return ""
    parts = min(width, len(values))
    cuts = [round(number * len(values) / parts) for number in range(parts + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(cuts, cuts[1:], strict=False)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means) + f"  {means[0]:.3g} -> {means[-1]:.3g}"


def _details(line: dict[str, Any]) -> str:
    names = {"optim/lr": "lr", "optim/grad_norm": "grad norm"}
    parts = [f"{short} {value:.3g}" for key, short in names.items() if (value := line.get(key)) is not None]
    if skipped := line.get("optim/skipped"):
        parts.append(f"{skipped:.0f} steps skipped")
    return "  ".join(parts)


def _cropped(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
