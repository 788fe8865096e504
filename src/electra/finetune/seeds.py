"""A task fine-tuned once a seed: trained, evaluated, and its predictions read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from electra import hardware
from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError
from electra.finetune.batching import subset
from electra.finetune.class_weights import class_weights
from electra.finetune.head_outputs import head_outputs
from electra.finetune.pretrained import Pretrained, check_length
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.finetune.trainer import Curve, Evaluate, Evaluated, Trial, train_together
from electra.finetune.unfinished import Unfinished
from electra.ops.dispatch import select
from electra.progress import say
from electra.tasks.details import Details
from electra.tasks.rows import Features, HeadOutputs
from electra.tasks.task_data import Predictions, TaskData
from electra.train.interrupt import Stop

TOGETHER = {256: 5, 768: 2}
"""Seeds side by side on a GPU, for encoders up to this width; wider ones fill the chip alone."""

_Outputs = Callable[[TaskModel, Features], HeadOutputs]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRun:
    """One seed's run: the metrics of the labelled splits, the predictions of every split, and the network itself."""

    seed: int
    scores: dict[str, float]
    stuck: bool
    seconds: float
    steps: int
    curve: Curve
    best_step: int
    """After which the weights were taken."""
    early: bool
    """Whether patience ended it."""
    predictions: dict[str, Predictions]
    details: Details | None
    """Of the split that gives the score."""
    network: TaskModel
    weights: dict[str, torch.Tensor]
    """The network's tensors by name, fp32, on the CPU."""


def together_on(device: torch.device, width: int) -> int:
    """How many seeds to train side by side."""
    if device.type == "cpu":
        return 1
    return next((count for widest, count in TOGETHER.items() if width <= widest), 1)


def run_seeds(
    base: Pretrained,
    data: TaskData,
    *,
    config: FinetuneConfig,
    seeds: Sequence[int],
    stop: Stop,
    together: int = 0,
    unfinished: Unfinished | None = None,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
    on_evaluation: Callable[[float], None] = lambda score: None,
) -> Iterator[SeedRun]:
    """Fine-tune from `base` once a seed, `together` at a time (0: as many as pay off), and give each when it is done.

    `on_step` is called with the steps done and the steps in all, over all seeds, and a recent loss; `on_evaluation`
    with each dev metric. Seeds go on from what `unfinished` holds of them, and are saved there.
    """
    check_length(base, config.length)
    device = device_of(config)
    if device.type == "cpu":
        hardware.keep_freed_memory()
    spec = _head(data, config)
    size = together or together_on(device, base.config.width)
    outputs = partial(head_outputs, beam=config.beam, pad_id=base.tokenizer.pad_id)
    evaluate = _dev_metric(data, outputs, on_evaluation=on_evaluation)
    before = 0
    for first in range(0, len(seeds), size):
        trials = [
            Trial(
                base.embeddings,
                base.encoder,
                spec,
                subset(data.train, config.max_train_rows, seed=seed),
                config=config,
                seed=seed,
                pad_id=base.tokenizer.pad_id,
                device=device,
            )
            for seed in seeds[first : first + size]
        ]
        if unfinished is not None:
            for trial in trials:
                unfinished.load(trial)
        save = unfinished.save if unfinished is not None else lambda trial: None
        total = before + trials[0].steps * (len(seeds) - first)

        def count(done: int, loss: float, *, before: int = before, total: int = total) -> None:
            on_step(before + done, total, loss)

        for trial in train_together(
            trials, evaluate=evaluate, stop=stop, save=save, on_step=count, on_restart=_say_restart
        ):
            yield _seed_run(trial, data, outputs)
        before += sum(trial.step for trial in trials)


def scores_before(base: Pretrained, data: TaskData, *, config: FinetuneConfig) -> dict[str, float]:
    """The metrics on the dev set before any training; none where a task's head would be random."""
    if data.task.kind != "pairs":
        return {}
    device = device_of(config)
    ops = select(config.kernels, device=device, dtype=torch.float32)
    network = TaskModel(base.embeddings, base.encoder, _head(data, config), ops=ops).to(device)
    outputs = partial(head_outputs, pad_id=base.tokenizer.pad_id)
    split = next(split for split in data.eval_splits.values() if split.evaluate is not None)
    assert split.evaluate is not None
    return split.evaluate(outputs(network, split.features)).scores


def _head(data: TaskData, config: FinetuneConfig) -> HeadSpec:
    task = data.task
    return HeadSpec(
        kind=task.kind,
        labels=task.labels,
        offset=task.offset,
        scale=task.scale,
        dropout=config.dropout,
        span_head=config.span_head,
        class_weights=class_weights(data, config.class_weights),
        group=data.train.group,
        cosine_scale=config.cosine_scale,
    )


def device_of(config: FinetuneConfig) -> torch.device:
    """Where a run trains; refused where that is not there."""
    try:
        return hardware.device(config.device)
    except ConfigError as error:  # it names pre-training's key
        raise ConfigError("device", "this machine has no usable CUDA device", fix="device=cpu") from error


def _dev_metric(data: TaskData, outputs: _Outputs, *, on_evaluation: Callable[[float], None]) -> Evaluate:
    """The task's metric on its first labelled split, as a function of the network."""
    split = next(split for split in data.eval_splits.values() if split.evaluate is not None)

    def evaluate(network: TaskModel) -> Evaluated:
        assert split.evaluate is not None
        found = split.evaluate(outputs(network, split.features))
        score = found.scores[data.task.choice]
        on_evaluation(score)
        return Evaluated(score, found.stuck)

    return evaluate


def _say_restart(trial: Trial) -> None:
    after = f"after {trial.step:,} of {trial.steps:,} steps"
    say(f"seed {trial.seed} has learned nothing {after}: it begins again at half the rate")


def _seed_run(trial: Trial, data: TaskData, outputs: _Outputs) -> SeedRun:
    scores: dict[str, float] = {}
    predictions: dict[str, Predictions] = {}
    stuck, details = False, None
    for name, split in data.eval_splits.items():
        found = outputs(trial.network, split.features)
        predictions[name] = split.decode(found)
        if split.evaluate is None:
            continue
        evaluation = split.evaluate(found)
        if not scores:
            scores, stuck = dict(evaluation.scores), evaluation.stuck
            details = split.details(found) if split.details is not None else None
        else:
            suffix = name.removeprefix("dev_")
            scores |= {f"{metric}_{suffix}": value for metric, value in evaluation.scores.items()}
    return SeedRun(
        seed=trial.seed,
        scores=scores,
        stuck=stuck,
        seconds=trial.seconds,
        steps=trial.step,
        curve=trial.curve,
        best_step=trial.best_step,
        early=trial.out_of_patience and trial.step < trial.steps,
        predictions=predictions,
        details=details,
        network=trial.network,
        weights=trial.weights(),
    )
