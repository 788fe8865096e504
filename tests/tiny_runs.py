"""Runs that take a second: made-up data, a config of two small layers, and what a finished run left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import corpora
import pytest
from torch import Tensor

from electra.batches.layout import Specials
from electra.batches.loader import Stream
from electra.checkpoint import saver, store
from electra.config.load import load
from electra.config.schema import Config
from electra.errors import Resumable
from electra.fsio import read_json
from electra.interop.continuation import Start
from electra.pretrain import pretrain
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions
from electra.train import execution
from electra.train.metrics_file import read_lines

Process = subprocess.Popen[str]
ROOT = Path(__file__).parents[1]
BATCH, STEPS = 8, 12
SMALL = [
    "model.layers=2",
    "model.width=64",
    "model.heads=1",
    "model.ffn=128",
    "model.embedding=32",
    "model.positions=64",
    "model.vocab_size=200",
    "generator.width=0.5",
    "data.length=32",
    f"train.batch_size={BATCH}",
    f"train.steps={STEPS}",
    "train.log_every=1",
    "train.precision=fp32",
    "optim.warmup_steps=4",
    "evaluate.sequences=8",
    "evaluate.every=5",
    "checkpoint.every=5",
]


def make_data(folder: Path, *, seed: object = 0, vocab: Path | None = None) -> Path:
    """Prepared data of a few hundred sentences; an epoch is about eight steps."""
    text = corpora.write_corpus(folder.with_suffix(".txt"), 20, seed)
    options = PrepareOptions(vocab_size=200, held_out_share=0.2, lowercase=True, strip_accents=True)
    prepare([str(text)], out=folder, options=options, vocab=vocab, workers=1)
    return folder


def small_config(*overrides: str) -> Config:
    """The small config with some values replaced."""
    return load("tiny", overrides=arguments(*overrides))


def arguments(*overrides: str) -> list[str]:
    """The small config as `key=value` arguments, with some values replaced."""
    values = dict(text.split("=", 1) for text in [*SMALL, *overrides])
    return [f"{key}={value}" for key, value in values.items()]


def command(data: Path, out: Path, *overrides: str) -> list[str]:
    """The arguments of `electra` that pre-train with the small config."""
    return ["pretrain", "--data", str(data), "--out", str(out), "--preset", "tiny", *arguments(*overrides)]


def start(
    arguments: list[str], program: tuple[str, ...] = ("-m", "electra"), *, stdin: bool = False, **environment: str
) -> Process:
    """`electra`, or another Python program, as a process of its own, its output in one pipe."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(happened: Callable[[], bool], process: Process, *, timeout_s: float = 90) -> None:
    """Return when `happened`; fail with the process's output where it ended before."""
    ends = time.monotonic() + timeout_s
    while not happened():
        if process.poll() is not None or time.monotonic() > ends:
            process.kill()
            raise AssertionError(f"exit {process.poll()}: {process.communicate()[0]}")
        time.sleep(0.02)


def steps_per_epoch(data: Path, config: Config) -> float:
    """Steps in the first epoch of a run."""
    prepared = open_data(data)
    stream = Stream(prepared.train, config.data, Specials.of(prepared.tokenizer()), seed=config.seed)
    return stream.epoch(0).layout.count / config.train.batch_size


def weights(run: Path) -> tuple[str, bytes, bytes]:
    """The last checkpoint: its name and the bytes of model and optimizer."""
    last = store.latest(run)
    assert last is not None
    return last.name, (last / "model.safetensors").read_bytes(), (last / "optimizer.safetensors").read_bytes()


def metric_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock and the memory."""
    return [
        {key: value for key, value in line.items() if key != "time_s" and not key.startswith("perf/")}
        for line in read_lines(run / "metrics.jsonl")
    ]


def losses(run: Path) -> list[float]:
    return [line["train/loss"] for line in metric_lines(run) if line["kind"] == "train"]


def as_version_02_left_it(run: Path, config: str | None = None) -> None:
    """Take from a run what came later: manifest, format, record of the kernels; `config` becomes its config.toml."""
    facts = read_json(run / "run.json")
    del facts["format"], facts["executions"]
    (run / "run.json").write_text(json.dumps(facts))
    (run / "manifest.json").unlink()
    if config is not None:
        (run / "config.toml").write_text(config)


def times(folder: Path) -> dict[Path, int]:
    """When everything in a folder was last changed."""
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@contextmanager
def signalled(step: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """This process gets the signal during the given step, counted from where the run goes on."""
    count = 0

    class Signalled(execution.Stepper):
        def __call__(self, rows: Tensor, lr: float) -> None:
            nonlocal count
            super().__call__(rows, lr)
            count += 1
            if count == step:
                os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "Stepper", Signalled)
        yield


@contextmanager
def steps_take(step_s: float) -> Iterator[None]:
    """The clock of runs in this process moves by `step_s` with every step and by nothing else, on any machine.

    Steps wait for a save, which else takes as many of them as the machine is busy.
    """
    now = time.monotonic()

    class Timed(execution.Stepper):
        def __call__(self, rows: Tensor, lr: float) -> None:
            nonlocal now
            super().__call__(rows, lr)
            now += step_s

    class Awaited(Thread):
        def start(self) -> None:
            super().start()
            self.join()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "Stepper", Timed)
        patch.setattr(saver, "Thread", Awaited)
        patch.setattr(time, "monotonic", lambda: now)
        yield


def stop_at(step: int, config: Config, *, data: Path, out: Path, start: Start | None = None) -> None:
    """Train from the beginning until the signal of the given step stops it."""
    with signalled(step), pytest.raises(Resumable, match=f"stopped by SIGTERM at step {step}, saved; run the same"):
        pretrain(config, data=data, out=out, start=start)
