"""`python -m electra.bench.finetune_speed --model MODEL --data GLUE`: our trainer against a plain `transformers` loop.

The peer is `ElectraForSequenceClassification` or `ElectraForQuestionAnswering` (sdpa, eager, bf16 autocast on a GPU):
rows tokenized beforehand, in random order, padded to the longest of their batch; torch's AdamW, clipping and a linear
schedule. Both take the same number of steps. Ours is timed twice: the first steps with the capture of every shape, then
as many more. Questions of `--squad FILE` come as they are and, as `squad-full`, with every row filled to `length`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from electra import hardware
from electra.bench.measure import wait
from electra.bench.start import start
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust
from electra.finetune.pretrained import Pretrained, load_pretrained, settings_for
from electra.finetune.task_model import HeadSpec
from electra.finetune.trainer import Trial
from electra.tasks.glue_files import find_tasks, has_split
from electra.tasks.rows import Features
from electra.tasks.task_data import TaskData, load_glue, load_questions

WARM_UP = 10
"""Steps of the peer before the clock runs."""


@click.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Exported ELECTRA folder.")
@click.option("--data", type=click.Path(path_type=Path), help="GLUE folder.")
@click.option("--squad", type=click.Path(path_type=Path), help="File of questions, as SQuAD's.")
@click.option("--steps", type=click.IntRange(1), default=300, show_default=True, help="Timed steps.")
@click.option("--tasks", default="", metavar="NAME,...", help="These tasks only.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    model: Path, data: Path | None, squad: Path | None, steps: int, tasks: str, overrides: tuple[str, ...]
) -> None:
    """Rows a second on each task of GLUE and on questions; KEY=VALUE settings change the paper's."""
    base = load_pretrained(model)
    click.echo(f"{'task':<12}{'ours/s':>9}{'first':>9}{'peer/s':>9}{'times':>7}{'with capture':>14}")
    for name, loaded, config in _loaded(base, data, squad, tasks.split(",") if tasks else (), overrides):
        device = hardware.device(config.device)
        first, later = ours(base, loaded, config, device, steps=steps)
        plain = peer(model, base.tokenizer.pad_id, loaded, config, device, steps=steps)
        click.echo(f"{name:<12}{later:>9.0f}{first:>9.0f}{plain:>9.0f}{later / plain:>7.2f}{first / plain:>14.2f}")


def _loaded(
    base: Pretrained, glue: Path | None, squad: Path | None, tasks: Sequence[str], overrides: tuple[str, ...]
) -> Iterator[tuple[str, TaskData, FinetuneConfig]]:
    """Every task that was asked for, with its rows and settings."""
    if glue is not None:
        for task in find_tasks(glue):
            if (not tasks or task.name in tasks) and has_split(task, glue, "train"):
                config = adjust(settings_for(base, task.name, kind=task.kind), overrides=overrides)
                yield task.name, load_glue(task, glue, tokenizer=base.tokenizer, config=config), config
    if squad is not None:
        config = adjust(settings_for(base, "squad", kind="span"), overrides=overrides)
        questions = load_questions("squad", {"train": squad, "dev": squad}, tokenizer=base.tokenizer, config=config)
        yield "squad", questions, config
        yield "squad-full", replace(questions, train=filled(questions.train, config.length)), config


def filled(features: Features, length: int) -> Features:
    """The rows, each filled to `length` tokens with the tokens of those after it."""
    rows = []
    for number, ids in enumerate(features.ids):
        following = itertools.cycle(features.ids[number + 1 :] + features.ids[: number + 1])
        tokens = itertools.chain(ids, itertools.chain.from_iterable(following))
        rows.append(list(itertools.islice(tokens, length)))
    return replace(features, ids=rows)


def ours(
    base: Pretrained, data: TaskData, config: FinetuneConfig, device: torch.device, *, steps: int
) -> tuple[float, float]:
    """Rows a second of our trainer while it captures, and after that."""
    epochs = 2 * steps * config.batch_size / len(data.train.ids) + 1
    trial = Trial(
        base.embeddings,
        base.encoder,
        HeadSpec(kind=data.task.kind, labels=data.task.labels, offset=data.task.offset, scale=data.task.scale),
        data.train,
        config=replace(config, epochs=epochs),
        seed=0,
        pad_id=base.tokenizer.pad_id,
        device=device,
    )
    with trial.on_stream():
        first, later = (rows_per_s(trial.advance, config.batch_size, device, steps=steps) for _ in range(2))
    return first, later


def rows_per_s(step: Callable[[], object], rows: int, device: torch.device, *, steps: int) -> float:
    """Rows a second over `steps` steps of so many rows."""
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return steps * rows / (time.perf_counter() - began)


def peer(
    model: Path, pad_id: int, data: TaskData, config: FinetuneConfig, device: torch.device, *, steps: int
) -> float:
    """Rows a second of the plain loop."""
    from transformers import get_linear_schedule_with_warmup

    network = _network(model, data).to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps + WARM_UP)
    random = np.random.default_rng(0)

    def step() -> None:
        picked = random.integers(0, len(data.train.ids), config.batch_size)
        inputs = {name: value.to(device) for name, value in padded(data.train, picked, pad_id).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = network(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    return rows_per_s(step, config.batch_size, device, steps=steps)


def _network(model: Path, data: TaskData) -> torch.nn.Module:
    """The class of `transformers` for a task, with the weights of an export."""
    from transformers import ElectraForQuestionAnswering, ElectraForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()  # it lists the heads it does not load, for every task
    if data.task.kind == "span":
        return ElectraForQuestionAnswering.from_pretrained(model, attn_implementation="sdpa")  # type: ignore[no-any-return]
    outputs = 1 if data.task.kind == "regress" else len(data.task.labels)
    return ElectraForSequenceClassification.from_pretrained(model, num_labels=outputs, attn_implementation="sdpa")  # type: ignore[no-any-return]


def padded(features: Features, picked: Any, pad_id: int) -> dict[str, torch.Tensor]:
    """The inputs of `transformers` for these rows, padded to the longest of them."""
    longest = max(len(features.ids[i]) for i in picked)
    ids = torch.full((len(picked), longest), pad_id)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, i in enumerate(picked):
        one = features.ids[i]
        ids[row, : len(one)] = torch.tensor(one)
        mask[row, : len(one)] = 1
        types[row, features.a_lengths[i] : len(one)] = 1
    targets = torch.tensor(np.asarray(features.targets)[picked])
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    if targets.ndim == 2:  # of a span: first and last token
        return inputs | {"start_positions": targets[:, 0], "end_positions": targets[:, 1]}
    return inputs | {"labels": targets}


if __name__ == "__main__":
    start(command)
