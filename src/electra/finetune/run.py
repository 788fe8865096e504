"""A task fine-tuned once for each seed: trained, judged, and its predictions read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from electra import hardware
from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError
from electra.finetune.answers import Said, answers
from electra.finetune.base import Base, check_length
from electra.finetune.batching import subset
from electra.finetune.jobs import Job, Predictions
from electra.finetune.network import HeadSpec, Tuned
from electra.finetune.trainer import Curve, Judge, Trial, train_together
from electra.train.interrupt import Stop

TOGETHER = {256: 5, 768: 2}
"""Seeds side by side on a GPU, for encoders up to this width; wider ones fill the chip alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """One seed's run: scores of every judged split, predictions of every split, and the network itself."""

    seed: int
    scores: dict[str, float]
    stuck: bool
    seconds: float
    steps: int
    curve: Curve
    predictions: dict[str, Predictions]
    tuned: Tuned
    weights: dict[str, torch.Tensor]
    """The network's tensors by name, fp32, on the CPU."""


def together_on(device: torch.device, width: int) -> int:
    """How many seeds to train side by side."""
    if device.type == "cpu":
        return 1
    return next((count for widest, count in TOGETHER.items() if width <= widest), 1)


def run_seeds(
    base: Base,
    job: Job,
    *,
    config: FinetuneConfig,
    seeds: Sequence[int],
    stop: Stop,
    together: int = 0,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
) -> Iterator[Finished]:
    """Fine-tune from `base` once a seed, `together` at a time (0: as many as pay off), each given when it is done.

    `on_step` hears steps done and steps in all, over all seeds, and a recent loss.
    """
    check_length(base, config)
    device = device_of(config)
    if device.type == "cpu":
        hardware.keep_freed_memory()
    spec = HeadSpec(kind=job.task.kind, labels=job.task.labels, scale=job.task.scale, dropout=config.dropout)
    size = together or together_on(device, base.config.width)
    asked = _asker(base, device=device, config=config)
    before = 0
    for first in range(0, len(seeds), size):
        trials = [
            Trial(
                base.embeddings,
                base.encoder,
                spec,
                subset(job.train, config.max_train_rows, seed=seed),
                config=config,
                seed=seed,
                pad_id=base.tokenizer.pad_id,
                device=device,
            )
            for seed in seeds[first : first + size]
        ]
        total = trials[0].steps * len(seeds)

        def heard(done: int, loss: float, *, before: int = before, total: int = total) -> None:
            on_step(before + done, total, loss)

        judge = _judge(job, asked)
        for trial in train_together(trials, judges=[judge] * len(trials), stop=stop, on_step=heard):
            yield _finished(trial, job, asked)
        before += sum(trial.steps for trial in trials)


def device_of(config: FinetuneConfig) -> torch.device:
    """Where a run trains; refused where that is not there."""
    try:
        return hardware.device(config.device)
    except ConfigError as error:  # it names pre-training's key
        raise ConfigError("device", "this machine has no usable CUDA device", fix="device=cpu") from error


def _asker(base: Base, *, device: torch.device, config: FinetuneConfig) -> Callable[[Tuned, str, Job], Said]:
    def ask(tuned: Tuned, split: str, job: Job) -> Said:
        features = job.parts[split].features
        return answers(tuned, features, device=device, beam=config.beam, pad_id=base.tokenizer.pad_id)

    return ask


def _judge(job: Job, ask: Callable[[Tuned, str, Job], Said]) -> Judge:
    split = next(name for name, part in job.parts.items() if part.judge is not None)

    def judge(tuned: Tuned) -> float:
        part = job.parts[split].judge
        assert part is not None
        return part(ask(tuned, split, job)).scores[job.task.metric]

    return judge


def _finished(trial: Trial, job: Job, ask: Callable[[Tuned, str, Job], Said]) -> Finished:
    scores: dict[str, float] = {}
    predictions: dict[str, Predictions] = {}
    stuck = False
    for split, part in job.parts.items():
        said = ask(trial.tuned, split, job)
        predictions[split] = part.read(said)
        if part.judge is None:
            continue
        verdict = part.judge(said)
        if not scores:
            scores, stuck = dict(verdict.scores), verdict.stuck
        else:
            suffix = split.removeprefix("dev_")
            scores |= {f"{name}_{suffix}": value for name, value in verdict.scores.items()}
    return Finished(
        seed=trial.seed,
        scores=scores,
        stuck=stuck,
        seconds=trial.seconds,
        steps=trial.steps,
        curve=trial.curve,
        predictions=predictions,
        tuned=trial.tuned,
        weights=trial.weights(),
    )
