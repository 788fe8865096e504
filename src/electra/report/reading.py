"""A run folder as the report needs it: curves, samples, cost and facts, whatever of them is there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.checkpoint.folder import FACTS, read_config, read_facts, verify_metrics
from electra.config.schema import Config
from electra.errors import DataError
from electra.fsio import read_object
from electra.model.cost import step_tokens
from electra.records import read_record
from electra.train.metrics_file import FILE, read_lines
from electra.train.schedule import batch_size

DEMO = "demo.json"

Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One held-out text at one step: as it was, as it was changed, and how suspicious each token looked."""

    step: int
    original: list[str]
    masked: list[str]
    replaced: list[str]
    probabilities: list[float]
    spaced: bool = False
    """Spaces are part of the tokens; otherwise `##` marks those that have none in front."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """What a run cost so far."""

    parameters: dict[str, int]
    steps: int
    tokens_read: float
    """Tokens that were text, padding left out."""
    tokens: float
    """Tokens processed, padding included."""
    paper_flops: float
    real_flops: float
    seconds: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything the page shows about one run."""

    name: str
    folder: Path
    config: Config
    facts: dict[str, Any]
    demo: dict[str, Any] | None
    """What `electra demo` says about its text and its fine-tuned encoders."""
    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    samples: list[Sample]

    def series(self, key: str) -> Points:
        """(step, value) pairs of a metric, from training lines for `train/...` and held-out ones for `eval/...`."""
        lines = self.evals if key.startswith("eval/") else self.train
        return [(line["step"], value) for line in lines if (value := number(line.get(key))) is not None]

    @property
    def start(self) -> str:
        """The model that a demo went on from; empty where it began from zero, or is none."""
        return str(self.demo.get("start") or "") if self.demo and self.demo.get("bundled") else ""

    @property
    def step(self) -> int:
        """The last step that anything was written of."""
        return int(max((line["step"] for line in [*self.train, *self.evals]), default=0))

    def last(self, key: str) -> float | None:
        points = self.series(key)
        return points[-1][1] if points else None

    @property
    def cost(self) -> RunCost:
        planned = self.facts.get("ledger") or {}
        steps = self.step
        processed = self._processed()
        share = processed / tokens if (tokens := number(planned.get("tokens"))) else 0.0
        speeds = [speed for _, speed in self.series("perf/tokens_per_s")]
        parts = (planned.get("parameters") or {}).get("parts") or {}
        return RunCost(
            parameters={str(name): int(count) for name, count in parts.items()},
            steps=steps,
            tokens_read=self._latest("tokens"),
            tokens=processed,
            paper_flops=share * (number(planned.get("paper")) or 0.0),
            real_flops=share * (number(planned.get("real")) or 0.0),
            seconds=self._latest("time_s"),
            tokens_per_s=sorted(speeds)[len(speeds) // 2] if speeds else 0.0,
        )

    def _processed(self) -> float:
        """Tokens of all steps, padding included; where the clock decided on the batch, by the times of the lines."""
        train, done, sequences = self.config.train, 0, 0.0
        if not (train.batch_start and train.max_minutes):
            return float(step_tokens(self.config, self.step))
        for line in self.train:
            size = batch_size(done, train=train, elapsed_s=number(line.get("time_s")) or 0.0)
            done, sequences = line["step"], sequences + size * (line["step"] - done)
        return sequences * self.config.data.length

    def _latest(self, key: str) -> float:
        return max((value for line in self.train if (value := number(line.get(key))) is not None), default=0.0)


def read_run(run: Path) -> Run:
    """The run in a folder; DataError where it is none."""
    if not (run / FILE).is_file() or not (run / "config.toml").is_file():
        raise DataError(run, f"has no {FILE} and config.toml", fix="give a run folder")
    verify_metrics(run)
    lines = read_lines(run / FILE)
    return Run(
        name=name_of(run),
        folder=run,
        config=read_config(run),
        facts=read_facts(run / FACTS) if (run / FACTS).is_file() else {},
        demo=_demo(run / DEMO),
        train=[line for line in lines if line.get("kind") == "train"],
        evals=[line for line in lines if line.get("kind") == "eval"],
        samples=[sample for line in lines if (sample := sample_of(line))],
    )


def name_of(folder: Path) -> str:
    """A folder's name as text; bytes that are none are shown as �."""
    return folder.resolve().name.encode("utf-8", "replace").decode()


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None  # type: ignore[arg-type]


def sample_of(line: dict[str, Any]) -> Sample | None:
    """The sample in a line of metrics; None where the line is of another kind, or does not hold together."""
    if line.get("kind") != "sample":
        return None
    original = _texts(line.get("original"))
    masked, replaced = _texts(line.get("masked")), _texts(line.get("replaced"))
    stored = line.get("probabilities")
    chances = [number(value) or 0.0 for value in stored] if isinstance(stored, list) else []
    sizes = {len(original), len(masked), len(replaced) or len(original), len(chances) or len(original)}
    if len(sizes) != 1 or not original:
        return None
    return Sample(
        step=int(line["step"]),
        original=original,
        masked=masked,
        replaced=replaced,
        probabilities=chances,
        spaced=line.get("spaced") is True,
    )


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, Iterable) and not isinstance(value, str) else []


@dataclass(frozen=True, kw_only=True, slots=True)
class _Corpus:
    bytes: int
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Example:
    text: str
    label: str
    pretrained: str
    untrained: str
    bundled: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    question: str
    labels: list[str]
    train: int
    dev: int
    times: int = 1
    gold: list[str] = field(default_factory=list)
    examples: list[_Example] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError("its task has no labels")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoder:
    accuracy: float
    seconds: float
    accuracies: list[float]
    predictions: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Demo:
    folder: str = ""
    tuned: str = ""
    corpus: _Corpus | None = None
    task: _Task | None = None
    pretrained: _Encoder | None = None
    untrained: _Encoder | None = None
    start: str = ""
    bundled: _Encoder | None = None


def _demo(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    value = read_object(path)
    read_record(_Demo, value, where=path, fix="run electra demo again")
    return value
