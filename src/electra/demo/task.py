"""The demo's tasks: the same rows and settings for every encoder, so that only their weights differ.

From zero it is which package a passage describes, which words alone tell. A model that was trained is asked about the
order of words, which nobody learns from a few hundred rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from electra.batches.order import permutation
from electra.config.finetune import FinetuneConfig
from electra.demo.documentation import read_rows
from electra.finetune.batching import step_count
from electra.finetune.pretrained import Pretrained
from electra.finetune.seed_folder import CURVE, read_curve, read_predictions
from electra.finetune.suite import Plan, run_task
from electra.fsio import write_atomic
from electra.tasks.task_data import TaskData, load_table

# Adam without bias correction steps boldly in a run this short: a third of the usual rate learns more.
FINETUNE = FinetuneConfig(batch_size=16, lr=3e-4, length=64, log_every=10)
PACKAGE, WORD_ORDER = "package", "word order"
IN_ORDER, MIXED_UP = "in order", "mixed up"
SWAPS = 6
_DRAWN = 1 << 27  # an order of its own for drawing places


class Encoder(NamedTuple):
    """An encoder to fine-tune, and what to call it."""

    title: str
    base: Pretrained


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """A fine-tuned encoder's answers about the development set."""

    accuracy: float
    accuracies: list[float]
    """After each epoch."""
    predictions: list[str]
    seconds: float


def write_word_order(folder: Path, *, passages: Path) -> None:
    """The passages of the other task as rows of this one, in `folder`: every second has neighbouring words swapped."""
    for split in ("train", "dev"):
        texts = [text for text, _ in read_rows(passages / f"task-{split}.jsonl")]
        rows = [
            {"text": swapped(text, seed=number), "label": MIXED_UP} if number % 2 else {"text": text, "label": IN_ORDER}
            for number, text in enumerate(texts)
        ]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(folder / f"task-{split}.jsonl", lines.encode())


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
    config: FinetuneConfig = FINETUNE,
) -> dict[str, Tuned]:
    """Each encoder fine-tuned on the rows in `folder`, in a folder of its name in `out`; they share a tokenizer."""
    files = {split: folder / f"task-{split}.jsonl" for split in ("train", "dev")}
    rows = len(read_rows(files["train"]))
    config = replace(config, epochs=float(epochs), eval_every=steps_an_epoch(rows, epochs=epochs))
    tokenizer = next(iter(encoders.values())).base.tokenizer
    data = load_table(
        task, files, kind="classify", text="text", pair=None, label="label", tokenizer=tokenizer, config=config
    )
    return {name: _tune(one, data, name=name, config=config, out=out) for name, one in encoders.items()}


def steps_an_epoch(rows: int, *, epochs: int) -> int:
    """Steps between evaluations that give one an epoch, the last at the end."""
    return -(-step_count(rows, epochs=epochs, batch_size=FINETUNE.batch_size) // epochs)


def _tune(encoder: Encoder, data: TaskData, *, name: str, config: FinetuneConfig, out: Path) -> Tuned:
    data = replace(data, task=replace(data.task, name=name, title=f"{data.task.title}, {encoder.title}"))
    plan = Plan(config=config, seeds=(config.seed,))
    result = run_task(encoder.base, data, plan=plan, out=out, folder=out / name)
    seed = out / name / f"seed-{config.seed}"
    return Tuned(
        accuracy=result.scores("accuracy")[0] / 100,
        accuracies=[score / 100 for _, score in read_curve(seed / CURVE).evaluations],
        predictions=list(read_predictions(seed / "dev.jsonl").values()),
        seconds=result.seeds[0].seconds,
    )
