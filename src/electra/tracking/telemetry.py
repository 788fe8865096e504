"""What the process that leads a run writes and shows: metrics.jsonl, the sink over it, the bar, lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from electra.config.schema import Config
from electra.manifest import FileSum
from electra.progress import Bar, counted, detail, progress, say
from electra.tracking.attach import InRun
from electra.train.loop import Position
from electra.train.meter import Line
from electra.train.metrics_file import MetricsWriter, evaluation_line, sample_line, status


@contextmanager
def telemetry(run: Path, config: Config, position: Position) -> Iterator[Telemetry]:
    """The telemetry of a run that goes on from a position; closed at the end of the block."""
    with ExitStack() as stack:
        metrics = MetricsWriter(run, step=position.step)
        stack.callback(metrics.close)
        tracker = InRun(run, config)
        stack.callback(tracker.close)
        title = f"pretrain {config.preset}"
        bar = stack.enter_context(progress(title, position.total_steps, "step", start=position.step))
        yield Telemetry(config, metrics, tracker, bar)


class Telemetry:
    """Takes what was measured; the file first, then what others see of it."""

    def __init__(self, config: Config, metrics: MetricsWriter, tracker: InRun, bar: Bar) -> None:
        self._minutes, self._metrics, self._tracker, self._bar = config.train.max_minutes, metrics, tracker, bar

    def tick(self, step: int) -> None:
        """Show that a step begins."""
        self._bar.update(step)

    def record(self, position: Position, line: Line, *, warmup: int) -> None:
        """Keep and show a log line; `warmup` are the current stage's steps of warm-up."""
        if self._bar.total is None and position.total_steps is not None:
            self._say_budget(position, warmup)
        time_s = round(position.elapsed_s, 3)
        self._metrics.write("train", step=position.step, time_s=time_s, tokens=position.tokens, **line)
        self._tracker.catch_up()
        self._bar.total = position.total_steps
        self._bar.update(position.step, status(line))
        detail(f"step {position.step}: {status(line)}  lr {line['optim/lr']:.3g}  norm {line['optim/grad_norm']:.3g}")

    def evaluated(
        self,
        position: Position,
        figures: dict[str, float],
        samples: Sequence[dict[str, Any]],
        *,
        time_s: float,
        spaced: bool,
    ) -> None:
        """Keep held-out figures and readable samples; show them and the first sample."""
        named = {f"eval/{name}": value for name, value in figures.items()}
        step = position.step
        self._metrics.write("eval", step=step, time_s=round(time_s, 3), tokens=position.tokens, **named)
        for sample in samples:
            self._metrics.write("sample", step=step, spaced=spaced, **sample)
        self._tracker.catch_up()
        say(evaluation_line(step, figures))
        say(sample_line(samples[0]))

    def written(self) -> FileSum:
        """The sum of the metrics so far, for a checkpoint."""
        return self._metrics.written()

    def sync(self) -> None:
        """Make the metrics survive a crash of the machine."""
        self._metrics.sync()

    def _say_budget(self, position: Position, warmup: int) -> None:
        """What the time budget buys, and a warning where a warm-up that was set by hand does not fit into it."""
        total = position.total_steps or 0
        budget = counted(self._minutes, "minute")
        say(f"step {position.step}: about {total:,} steps in {budget}, {warmup:,} of them warm-up")
        if warmup >= total:
            say("warning: the run ends inside its warm-up (leave optim.warmup_steps out: then it fits)")
