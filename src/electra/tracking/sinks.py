"""Where metrics may go besides metrics.jsonl: one table, one small class for each."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from electra.config.keys import flatten
from electra.config.schema import Config
from electra.errors import ConfigError, pip_install
from electra.fsio import read_json, write_json
from electra.records import read_record
from electra.tracking.run_state import began_at

FIGURES = ("train", "eval")  # kinds of lines whose values are numbers
TENSORBOARD, WANDB = "tensorboard", "wandb.json"
WANDB_PROJECT = "electra"


class Sink(Protocol):
    """What shows metrics somewhere else."""

    def begin(self) -> None:
        """Be ready for the first line of the file, whatever was shown before."""

    def add(self, line: dict[str, Any]) -> None:
        """Show one line."""

    def flush(self) -> None:
        """Let others see what was added."""

    def close(self) -> None: ...


def figures_of(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line by their names; a figure that was not finite is left out."""
    if line["kind"] not in FIGURES:
        return {}
    return {name: float(value) for name, value in line.items() if "/" in name and value is not None}


def require(package: str) -> ModuleType:
    """A package of the extra `track`, or one line that says how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        fix = pip_install("track")
        raise ConfigError("track", f"this needs the package {package.partition('.')[0]}", fix=fix) from error


class TensorBoard:
    """Event files in RUN/tensorboard, always exactly what metrics.jsonl holds."""

    def __init__(self, run: Path, config: Config) -> None:
        self._writers = require("tensorboard.summary.writer.event_file_writer")
        self._events = require("tensorboard.compat.proto.event_pb2")
        self._summaries = require("tensorboard.compat.proto.summary_pb2")
        self._folder, self._began = run / TENSORBOARD, began_at(run)
        self._writer: Any = None

    def begin(self) -> None:
        """Write from the beginning; a TensorBoard that is open drops the points that it has read."""
        if self._writer is not None:
            self._writer.close()
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._writers.EventFileWriter(str(self._folder))
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(wall_time=self._began, step=0, session_log=start))

    def add(self, line: dict[str, Any]) -> None:
        Summary = self._summaries.Summary
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures_of(line).items()]
        if values:
            wall_time = self._began + (line.get("time_s") or 0.0)
            summary = Summary(value=values)
            self._writer.add_event(self._events.Event(wall_time=wall_time, step=line["step"], summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True, slots=True)
class _Sent:
    """RUN/wandb.json: the identity of the run there, and the last step sent of each kind of line."""

    id: str | None = None
    train: int = -1
    eval: int = -1


class Wandb:
    """A Weights & Biases run by its public API. Points cannot be taken back there, so each step is sent once."""

    def __init__(self, run: Path, config: Config) -> None:
        wandb = require("wandb")
        self._path = run / WANDB
        known = _Sent()
        if self._path.is_file():
            known = read_record(_Sent, read_json(self._path), where=self._path, fix="remove it to begin a new one")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
            name=run.resolve().name,
            dir=str(run),
            id=known.id,
            resume="allow",
            config=flatten(config),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._sent = {"train": known.train, "eval": known.eval}

    def begin(self) -> None:
        """Nothing: what was sent stays."""

    def add(self, line: dict[str, Any]) -> None:
        figures, step = figures_of(line), line["step"]
        if figures and step > self._sent[line["kind"]]:
            self._run.log({"step": step, **figures})
            self._sent[line["kind"]] = step

    def flush(self) -> None:
        write_json(self._path, {"id": self._run.id, **self._sent})

    def close(self) -> None:
        self.flush()
        self._run.finish()


SINKS: dict[str, Callable[[Path, Config], Sink]] = {"tensorboard": TensorBoard, "wandb": Wandb}
