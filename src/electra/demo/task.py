"""The demo's tasks: the same rows and settings for every encoder, so that only their weights differ.

From zero it is which package a passage describes, which words alone tell. A model that was trained is asked about the
order of words, which nobody learns from a few hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from electra.batches.order import permutation
from electra.config.finetune import FinetuneConfig
from electra.demo.documentation import read_rows
from electra.finetune.batching import step_count
from electra.finetune.pretrained import Pretrained
from electra.finetune.seed_folder import CURVE, read_curve, read_predictions, seed_folder
from electra.finetune.suite import Plan, median_seed, run_task
from electra.fsio import json_lines, write_atomic
from electra.metrics.spread import summarise
from electra.tasks.task_data import TaskData, load_table

PACKAGE, WORD_ORDER = "package", "word order"
# Adam without bias correction steps boldly in a run this short: a third of the usual rate learns more.
_FROM_ZERO = FinetuneConfig(batch_size=16, lr=3e-4, length=64, log_every=10)
# What adapting brings shows where labels are few. Without dropout, as electra:tiny was trained: with it, fine-tuning
# loses what the encoder knows, and scatters (docs/lab/2026-11-18-demo-few-labels.md).
_FEW_LABELS = replace(_FROM_ZERO, max_train_rows=128, dropout=0.0, encoder_dropout=0.0, attention_dropout=0.0)
FINETUNE = {PACKAGE: _FROM_ZERO, WORD_ORDER: _FEW_LABELS}
SEEDS = {PACKAGE: 1, WORD_ORDER: 3}
"""Fine-tunings of each encoder; with few labels each draws its own, since which they are moves a score by points."""
IN_ORDER, MIXED_UP = "in order", "mixed up"
SWAPS = 6
_DRAWN = 1 << 27  # an order of its own for drawing places


class Encoder(NamedTuple):
    """An encoder to fine-tune, and what to call it."""

    title: str
    base: Pretrained


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """An encoder's answers about the development set, fine-tuned once a seed."""

    accuracy: float
    """The mean over the seeds; ..."""
    accuracies: list[float]
    """... after each epoch; none where only the end was asked for."""
    predictions: list[str]
    """Of the seed whose accuracy is the median."""
    seconds: float
    """Of all seeds."""


def write_word_order(folder: Path, *, passages: Path) -> None:
    """The passages of the other task as rows of this one, in `folder`: every second has neighbouring words swapped."""
    for split in ("train", "dev"):
        texts = [text for text, _ in read_rows(passages / f"task-{split}.jsonl")]
        rows = [
            {"text": swapped(text, seed=number), "label": MIXED_UP} if number % 2 else {"text": text, "label": IN_ORDER}
            for number, text in enumerate(texts)
        ]
        write_atomic(folder / f"task-{split}.jsonl", json_lines(rows))


def swapped(text: str, *, seed: int) -> str:
    """The text with `SWAPS` pairs of neighbouring words swapped, none of them equal but for case."""
    words, done = text.split(" "), 0
    for place in permutation(len(words) - 1, seed=seed, epoch=_DRAWN).tolist():
        if done < SWAPS and words[place].lower() != words[place + 1].lower():
            words[place], words[place + 1] = words[place + 1], words[place]
            done += 1
    return " ".join(words)


def compare(
    encoders: dict[str, Encoder],
    *,
    task: str,
    folder: Path,
    out: Path,
    epochs: int,
    first_seed: int = 0,
    config: FinetuneConfig | None = None,
    each_epoch: bool = True,
) -> dict[str, Tuned]:
    """Each encoder fine-tuned on the rows in `folder`, in a folder of its name in `out`; they share a tokenizer.

    Seeds count from `first_seed`, and each draws the same labels for all encoders. `config` where it is not the task's
    own; without `each_epoch`, there is an evaluation at the end only, with the same figures.
    """
    config = FINETUNE[task] if config is None else config
    files = {split: folder / f"task-{split}.jsonl" for split in ("train", "dev")}
    rows = labels_used(len(read_rows(files["train"])), config=config)
    every = steps_an_epoch(rows, epochs=epochs, batch_size=config.batch_size)
    config = replace(config, epochs=float(epochs), eval_every=every if each_epoch else 0)
    plan = Plan(config=config, seeds=tuple(range(first_seed, first_seed + SEEDS[task])))
    tokenizer = next(iter(encoders.values())).base.tokenizer
    data = load_table(
        task, files, kind="classify", text="text", pair=None, label="label", tokenizer=tokenizer, config=config
    )
    return {name: _tune(one, data, name=name, plan=plan, out=out) for name, one in encoders.items()}


def labels_used(rows: int, *, config: FinetuneConfig) -> int:
    """How many of the training rows one fine-tuning learns from."""
    return min(rows, config.max_train_rows or rows)


def steps_an_epoch(rows: int, *, epochs: int, batch_size: int) -> int:
    """Steps between evaluations that give one an epoch, the last at the end."""
    return -(-step_count(rows, epochs=epochs, batch_size=batch_size) // epochs)


def _tune(encoder: Encoder, data: TaskData, *, name: str, plan: Plan, out: Path) -> Tuned:
    data = replace(data, task=replace(data.task, name=name, title=f"{data.task.title}, {encoder.title}"))
    result = run_task(encoder.base, data, plan=plan, out=out, folder=out / name)
    curves = [read_curve(seed_folder(out / name, seed) / CURVE).evaluations for seed in plan.seeds]
    return Tuned(
        accuracy=result.summary("accuracy").mean / 100,
        accuracies=[summarise(score for _, score in evaluated).mean / 100 for evaluated in zip(*curves, strict=True)],
        predictions=list(read_predictions(seed_folder(out / name, median_seed(result)) / "dev.jsonl").values()),
        seconds=sum(seed.seconds for seed in result.seeds),
    )
