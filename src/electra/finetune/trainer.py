"""Fine-tuning of one seed, or of several side by side.

On a GPU each shape of batch is captured once as a CUDA graph, and the seeds' graphs run on streams of their own: a
small encoder alone leaves most of the chip idle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra import hardware
from electra.batches.sequences import unpack
from electra.config.finetune import FinetuneConfig
from electra.config.schema import OptimConfig
from electra.errors import Diverged, Resumable
from electra.finetune.batching import batches, step_count
from electra.finetune.guessing import guessing_loss
from electra.finetune.task_model import HeadSpec, TaskModel, depth_scale, freeze
from electra.model.encoder import Encoder
from electra.model.layers import Embeddings, set_dropout
from electra.ops.compile_ahead import compile_sources
from electra.ops.dispatch import select
from electra.tasks.rows import Features
from electra.train.capture import Captured
from electra.train.interrupt import Stop
from electra.train.optim import Update
from electra.train.replay import sent
from electra.train.schedule import learning_rate
from electra.train.state import Master

GPU_GRAINS = (32, 64)  # lengths are multiples of these: few shapes to capture, little padding
LONG = 256
SAVE_EVERY_S = 60.0  # a kill loses no more
SAVE_SHARE = 0.02  # of the time, at most, goes into saving
STUCK_EVALUATIONS = 2  # in a row, that find one answer to every row: such a trial does not recover
LEARNED = 0.97  # of the loss of guessing: one that is above it has learned nothing
BEST, MEAN = "best", "mean"
FIRST_LOOKS = (1, 5, 10, 20)  # steps after which the loss is looked at too, so that a bar shows one at once


class Evaluated(NamedTuple):
    """The network's metric on the dev set, higher is better, and whether it gives one answer to every row."""

    score: float
    stuck: bool


Evaluate = Callable[[TaskModel], Evaluated]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Losses and dev metrics of a trial, by step."""

    losses: list[tuple[int, float]]
    """Step, and mean loss of a prediction since the last entry."""
    evaluations: list[tuple[int, float]]
    """Step, and the metric on the dev set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialState:
    """Where a trial stands, besides its tensors."""

    step: int
    seconds: float
    totals: list[float]
    """Loss, predictions and skipped steps since the last reading."""
    losses: list[list[float]]
    evaluations: list[list[float]]
    best: float | None
    restarts: int = 0
    """How often it has begun again."""
    stuck: int = 0
    """Evaluations in a row, up to the last one, that found one answer to every row."""

    def __post_init__(self) -> None:
        if len(self.totals) != 3 or any(len(point) != 2 for point in (*self.losses, *self.evaluations)):
            raise ValueError("is not the state of a seed")


class Trial:
    """One seed: a network, its optimizer state, and the steps that are left."""

    def __init__(
        self,
        embeddings: Embeddings,
        encoder: Encoder,
        spec: HeadSpec,
        features: Features,
        *,
        config: FinetuneConfig,
        seed: int,
        pad_id: int,
        device: torch.device,
    ) -> None:
        self.seed, self.config, self.device, self.features = seed, config, device, features
        compute = hardware.compute_dtype(config.precision, device)
        compile_sources(config.kernels, device=device, dtype=compute)
        self.compute, self.ops = compute, (ops := select(config.kernels, device=device, dtype=compute))
        self.network = TaskModel(embeddings, encoder, spec, ops=ops, dtype=compute, seed=seed)
        set_dropout(self.network, rate=config.encoder_dropout, attention_rate=config.attention_dropout)
        scale = depth_scale(
            config.layer_decay,
            encoder.shape.layers,
            official=config.layer_decay_exponent == "official",
            frozen=config.frozen_layers,
        )
        freeze(self.network, config.frozen_layers)
        self._master = Master(self.network, compute=compute, device=device, scale=scale)
        self._update = Update(self._master, config, ops=ops)
        batch_size = min(config.batch_size, max(1, features.count))
        self.steps = step_count(features.count, epochs=config.epochs, batch_size=batch_size)
        self._schedule = OptimConfig(
            lr=config.lr, warmup_steps=self.steps, warmup_share=config.warmup, decay_steps=self.steps
        )
        grain = 1 if device.type == "cpu" else GPU_GRAINS[config.length > LONG]
        self._batches_from = partial(
            batches,
            features,
            steps=self.steps,
            batch_size=batch_size,
            seed=seed,
            pad_id=pad_id,
            grain=grain,
            positions=embeddings.positions,
        )
        self._batches = self._batches_from()
        self._totals = torch.zeros(3, dtype=torch.float64, device=device)
        self._graphs: dict[tuple[int, ...], Captured] = {}
        self._capture = device.type == "cuda" and config.compile != "off"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._best: tuple[float, Tensor] | None = None
        self._mean: Tensor | None = None
        self._start = self._master.weights.clone() if config.restarts else None
        self._guessing = guessing_loss(features, spec)
        self._stuck = 0
        self.restarts = 0
        self.step = 0
        self.seconds = 0.0
        self.curve = Curve(losses=[], evaluations=[])
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))  # which has copied the weights

    def state(self) -> tuple[dict[str, dict[str, Tensor]], TrialState]:
        """The tensors and numbers from which another trial of the same seed goes on exactly; waits for the device."""
        tensors = self._master.tensors()
        for name, chosen in ((BEST, self._best[1] if self._best is not None else None), (MEAN, self._mean)):
            if chosen is not None:
                tensors = tensors | {name: {"weights": chosen}}
        if self._stream is not None:
            self._stream.synchronize()
        return tensors, TrialState(
            step=self.step,
            seconds=self.seconds,
            totals=self._totals.tolist(),
            losses=[list(point) for point in self.curve.losses],
            evaluations=[list(point) for point in self.curve.evaluations],
            best=self._best[0] if self._best is not None else None,
            restarts=self.restarts,
            stuck=self._stuck,
        )

    def go_on(self, tensors: dict[str, dict[str, Tensor]], state: TrialState) -> None:
        """Take the place of a trial that gave this `state`."""
        with self.on_stream():
            self._master.load(tensors)
            self._totals.copy_(torch.tensor(state.totals, dtype=torch.float64))
            if state.best is not None:
                self._best = (state.best, tensors[BEST]["weights"].to(self.device))
            self._mean = tensors[MEAN]["weights"].to(self.device) if MEAN in tensors else None
        self.step, self.seconds = state.step, state.seconds
        self.restarts, self._stuck = state.restarts, state.stuck
        self.curve.losses[:] = [(int(step), loss) for step, loss in state.losses]
        self.curve.evaluations[:] = [(int(step), score) for step, score in state.evaluations]
        self._batches = self._batches_from(first=state.step)

    @property
    def ended(self) -> bool:
        """Whether every step is done, or the dev metric has not become better for as long as `patience` says."""
        return self.step == self.steps or self.out_of_patience

    @property
    def is_stuck(self) -> bool:
        """Whether half of its steps are done and nothing is learned, and it may still begin again.

        Nothing is learned where the evaluations find one answer to every row, or where the training loss since a
        quarter of the steps is that of guessing.
        """
        if 2 * self.step < self.steps or self.restarts >= self.config.restarts:
            return False
        in_a_row = min(STUCK_EVALUATIONS, len(self.curve.evaluations))
        losses = [loss for step, loss in self.curve.losses if 4 * step > self.steps]
        return self._stuck >= in_a_row > 0 or (bool(losses) and fmean(losses) > LEARNED * self._guessing > 0)

    def begin_again(self) -> None:
        """Begin anew at half the rate, from the weights and with the batches of before."""
        assert self._start is not None
        self._put(self._start)
        self._master.average.zero_()
        self._master.square.zero_()
        self._totals.zero_()
        self._best, self._mean, self._stuck = None, None, 0
        self.curve = Curve(losses=[], evaluations=[])
        self._batches = self._batches_from()
        self.restarts, self.step = self.restarts + 1, 0

    @property
    def out_of_patience(self) -> bool:
        scores = [score for _, score in self.curve.evaluations]
        patience = self.config.patience
        if not patience or len(scores) <= patience:
            return False
        known = [score if score == score else -math.inf for score in scores]
        return max(known[-patience:]) <= max(known[:-patience])

    @property
    def best_step(self) -> int:
        """The step whose weights `finish` puts in place."""
        if self._best is None:
            return self.step
        return next(step for step, score in self.curve.evaluations if score == self._best[0])

    def advance(self) -> None:
        """Do one step."""
        self._update.lr.fill_(learning_rate(self.step, optim=self._schedule, total=self.steps) / 2**self.restarts)
        batch = next(self._batches)
        rows, targets = sent(batch.rows, self.device), sent(batch.targets, self.device)
        if not self._capture:
            self._work(rows, targets)
        else:
            if rows.shape not in self._graphs:
                self._graphs[rows.shape] = self._captured(rows, targets)
            self._graphs[rows.shape](rows, targets)
        self.step += 1
        if self.config.select == "average" and self.step > self.steps // 2:
            self._add_to_mean(self.step - self.steps // 2)

    def on_stream(self) -> AbstractContextManager[Any]:
        """Where this trial's GPU work goes."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def loss_so_far(self) -> float:
        """Mean loss of a prediction since the last reading, which goes on; waits for the device."""
        total, count, _ = self._totals.tolist()
        return float(total / count) if count else math.nan

    def read_loss(self) -> float:
        """Mean loss of a prediction since the last reading; waits for the device."""
        total, count, skipped = self._totals.tolist()
        self._totals.zero_()
        if skipped and not count:
            raise Diverged(
                f"seed {self.seed}, step {self.step}: every gradient since the last reading was not finite (lower lr)"
            )
        mean: float = total / max(count, 1.0)
        self.curve.losses.append((self.step, mean))
        return mean

    def evaluate(self, evaluate: Evaluate) -> float:
        """The dev metric now: of the averaged weights, where `select` is `average` and they have begun.

        Saves the weights where they are the best so far and `select` is `best`.
        """
        with self._mean_in_place():
            score, stuck = evaluate(self.network)
        self._stuck = self._stuck + 1 if stuck else 0
        self.curve.evaluations.append((self.step, score))
        if self.config.select == "best" and score == score and (self._best is None or score > self._best[0]):
            self._best = (score, self._master.weights.clone())
        return score

    def finish(self) -> None:
        """Put the chosen weights in place, for any stream to read."""
        chosen = self._best[1] if self._best is not None else self._mean
        with self.on_stream():
            if chosen is not None:
                self._put(chosen)
        if self._stream is not None:
            self._stream.synchronize()
        self._graphs.clear()

    def weights(self) -> dict[str, Tensor]:
        """The network's tensors by name: fp32, on the CPU."""
        return {name: tensor.cpu() for name, tensor in self._master.tensors()["model"].items()}

    def _put(self, weights: Tensor) -> None:
        self._master.weights.copy_(weights)
        self._master.refresh()

    def _add_to_mean(self, count: int) -> None:
        """Take the weights into the mean as the `count`-th."""
        weights = self._master.weights
        self._mean = weights.clone() if self._mean is None else self._mean.lerp_(weights, 1 / count)

    @contextmanager
    def _mean_in_place(self) -> Iterator[None]:
        """The network with the mean of the weights, where there is one, and afterwards with its own."""
        if self._mean is None:
            yield
            return
        own = self._master.weights.clone()
        self._put(self._mean)
        try:
            yield
        finally:
            self._put(own)

    def _work(self, rows: Tensor, targets: Tensor) -> None:
        loss, count = self.network.loss(unpack(rows), targets)
        (loss if self.config.loss == "sum" else loss / count.clamp(min=1)).backward()
        self._master.collect(first=True)
        skipped = self._update().skipped
        good = skipped == 0
        self._totals += torch.stack((torch.where(good, loss.detach(), 0.0), torch.where(good, count, 0.0), skipped))

    def _captured(self, rows: Tensor, targets: Tensor) -> Captured:
        master = self._master
        pool = next(iter(self._graphs.values())).pool if self._graphs else None
        changed = (master.weights, master.average, master.square, self._totals)
        # Nothing is compiled here: only the very first run may still allocate what the library caches.
        captured = Captured(self._work, (rows, targets), changed=changed, pool=pool, warm_ups=1 if pool else 2)
        master.refresh()
        return captured


def train_together(
    trials: Sequence[Trial],
    *,
    evaluate: Evaluate,
    stop: Stop,
    save: Callable[[Trial], None] = lambda trial: None,
    on_step: Callable[[int, float], None] = lambda done, loss: None,
    on_restart: Callable[[Trial], None] = lambda trial: None,
) -> Iterator[Trial]:
    """Train the trials in turn, one step each, and give each trial when it is done.

    `on_step` is called with the steps done over all trials, and a recent loss, `on_restart` with a trial that is stuck
    before it begins again. Every minute, and when a stop is asked for, `save` is called with each trial that is not
    done; a stop then raises `Resumable`.
    """
    done, loss = sum(trial.step for trial in trials), float("nan")
    began = time.monotonic()
    before = {trial.seed: trial.seconds for trial in trials}
    running, due = list(trials), began + SAVE_EVERY_S
    while running:
        if stop or time.monotonic() >= due:
            started = time.monotonic()
            for trial in running:
                trial.seconds = before[trial.seed] + started - began
                save(trial)
            if stop:
                raise Resumable(f"stopped by {stop.reason}, saved; run the same command to continue")
            now = time.monotonic()
            due = now + max(SAVE_EVERY_S, (now - started) / SAVE_SHARE)
        for trial in running:
            with trial.on_stream():
                trial.advance()
                ends, every = trial.step == trial.steps, trial.config.eval_every
                if every and (ends or trial.step % every == 0):
                    trial.evaluate(evaluate)
                    if trial.is_stuck:
                        done -= trial.step
                        on_restart(trial)
                        trial.begin_again()
                    ends = trial.ended
                if trial.step and (ends or trial.step % trial.config.log_every == 0):
                    loss = trial.read_loss()
                elif trial.step in FIRST_LOOKS and trial.step < trial.config.log_every:
                    loss = trial.loss_so_far()
            done += 1
            on_step(done, loss)
        finished = [trial for trial in running if trial.ended]
        running = [trial for trial in running if not trial.ended]
        for trial in finished:
            trial.seconds = before[trial.seed] + time.monotonic() - began
            trial.finish()
            yield trial
