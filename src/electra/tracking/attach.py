"""A sink that is attached to a run: from its beginning, after a resume, or late. It reads metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from electra.config.schema import Config
from electra.errors import ConfigError
from electra.progress import say
from electra.tracking.metrics_follower import MetricsFollower
from electra.tracking.run_state import Liveness, config_of
from electra.tracking.sinks import SINKS, Sink

EVERY_S = 2.0


class Tracker:
    """Hands the lines of a run's metrics.jsonl to a sink, each once."""

    def __init__(self, run: Path, sink: Sink) -> None:
        self._sink, self._follower = sink, MetricsFollower(run)
        sink.begin()

    def catch_up(self) -> int:
        """Hand over the lines that are new; how many."""
        anew, lines = self._follower.look_at_all()
        if anew:
            self._sink.begin()
        for line in lines:
            self._sink.add(line)
        if lines or anew:
            self._sink.flush()
        return len(lines)

    def close(self) -> None:
        self._sink.close()


class InRun:
    """The tracker of the process that trains: a sink that fails is a warning, and the run goes on without it."""

    def __init__(self, run: Path, config: Config) -> None:
        self._run, self._name = run, config.track
        self._tracker: Tracker | None = None
        if config.track != "none":
            self._guarded(lambda: self._attach(config))

    def catch_up(self) -> None:
        if self._tracker is not None:
            self._guarded(self._tracker.catch_up)

    def close(self) -> None:
        if self._tracker is not None:
            self.catch_up()
        if self._tracker is not None:
            self._guarded(self._tracker.close)

    def _attach(self, config: Config) -> None:
        self._tracker = Tracker(self._run, SINKS[self._name](self._run, config))

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except ConfigError:  # a missing package is said before the first step
            raise
        except Exception as error:  # whatever a package or its server may raise
            self._tracker = None
            reason = " ".join(str(error).split()) or type(error).__name__
            later = f"electra track {self._run} --to {self._name}"
            say(f"warning: tracking ended: {reason}; the run goes on, and `{later}` catches up")


def track(run: Path, *, to: str, follow: bool) -> int:
    """Hand everything that a run has measured to a sink, and with `follow` what it will, until it is no longer
    trained; how many lines."""
    config, liveness = config_of(run), Liveness(run)
    if config.track == to and liveness.alive():
        reason = f"{run} is being trained with track={to} and shows its metrics itself"
        raise ConfigError("--to", reason, fix="look there, or wait until it has ended")
    tracker = Tracker(run, SINKS[to](run, config))
    try:
        count = tracker.catch_up()
        while follow and liveness.alive():
            time.sleep(EVERY_S)
            count += tracker.catch_up()
        return count
    finally:
        tracker.close()
