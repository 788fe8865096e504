"""`python -m electra.bench.transformers_glue --run RUN --glue GLUE`: a speedrun's scores again, by a plain loop.

The run is exported, then fine-tuned by `transformers` and torch alone: AutoTokenizer,
AutoModelForSequenceClassification, AdamW with a learning rate a layer, clipping, warm-up and linear decay; metrics by
scikit-learn and SciPy. Settings are the paper's as far as stock classes have them: their head has a layer more, their
loss is a mean over the batch, and torch's AdamW corrects its averages for their start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from electra import hardware
from electra.bench.start import start
from electra.config.finetune import FinetuneConfig
from electra.finetune.export import export
from electra.finetune.paper_settings import settings, size_of
from electra.finetune.task_results import GLUE, GLUE_5
from electra.fsio import read_json, write_json
from electra.progress import progress, say
from electra.report.reading import read_run
from electra.reproduce.workers import Worker, side_by_side
from electra.speedrun.record import FILE, TaskScore, append, glue5_of
from electra.speedrun.score import LOGS, LONGEST_FIRST, SCORES, SEEDS, record_of, require_finished
from electra.tasks.features import swapped
from electra.tasks.glue_files import read_glue
from electra.tasks.glue_tasks import TASKS
from electra.tasks.rows import Example
from electra.tasks.task import Task

MODULE, NAME = "electra.bench.transformers_glue", "transformers"
EVALUATION_BATCH = 256


@click.command()
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Folder of `electra speedrun train`.")
@click.option("--glue", required=True, type=click.Path(path_type=Path), help="GLUE folder.")
@click.option("--seeds", type=click.Choice(["report", "choice"]), default="report", show_default=True)
@click.option("--records", type=click.Path(path_type=Path), help="Append the record here (default: RUN/records.jsonl).")
@click.option(
    "--processes", default=5, show_default=True, type=click.IntRange(1), help="At a time, a task and seed each."
)
@click.option("--commit", help="The commit of the code, where it ran outside a checkout.")
@click.option("--one", type=(str, int), hidden=True)
def command(
    run: Path,
    glue: Path,
    seeds: Any,
    records: Path | None,
    processes: int,
    commit: str | None,
    one: tuple[str, int] | None,
) -> None:
    """Fine-tune the export of a finished speedrun on GLUE-5 by a plain loop; the line of `electra speedrun score`."""
    out = run / SCORES / seeds / NAME
    if one is not None:
        task, seed = one
        write_score(out / "model", TASKS[task], read_settings(run)[task], glue=glue, seed=seed, out=_file(out, *one))
        return
    require_finished(run)
    if not (out / "model").is_dir():
        export(run, out / "model")
    all_ones = [(task, seed) for task in LONGEST_FIRST for seed in SEEDS[seeds]]
    shared = ["--run", str(run), "--glue", str(glue), "--seeds", seeds, "--one"]
    workers = [
        Worker(name=f"{task}-{seed}", arguments=[*shared, task, str(seed)], module=MODULE)
        for task, seed in all_ones
        if not _file(out, task, seed).is_file()
    ]
    for name in side_by_side(workers, logs=out / LOGS, together=processes, gpus=torch.cuda.device_count()):
        say(f"{name} is done")
    found = {(task, seed): float(read_json(_file(out, task, seed))["score"]) for task, seed in all_ones}
    tasks = {
        task: TaskScore.over(
            {str(seed): found[task, seed] for seed in SEEDS[seeds]}, title=TASKS[task].title, metric=GLUE[task]
        )
        for task in GLUE_5
    }
    record = record_of(run, glue5_of(tasks), purpose=seeds, commit=commit, scorer=NAME)
    append(records or run / FILE, record)
    click.echo(record.line)


def read_settings(run: Path) -> dict[str, FinetuneConfig]:
    """The paper's settings of each task for the run's model, with sequences no longer than in its pre-training."""
    config = read_run(run).config
    found = {task: settings(task, size_of(config.model)) for task in GLUE_5}
    return {task: replace(one, length=min(one.length, config.data.length)) for task, one in found.items()}


def write_score(model: Path, task: Task, config: FinetuneConfig, *, glue: Path, seed: int, out: Path) -> None:
    """Write the score of one task from one seed, in percent."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # it lists the heads that it does not load, for every task
    torch.set_float32_matmul_precision("high")
    score = finetune_task(model, task, config, glue=glue, seed=seed, device=hardware.device("auto"))
    say(f"{task.title}, seed {seed}: {score:.2f}")
    write_json(out, {"score": score})


def finetune_task(
    model: Path, task: Task, config: FinetuneConfig, *, glue: Path, seed: int, device: torch.device
) -> float:
    """The score on the dev set after training on the whole train set, in percent."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(
        model,
        num_labels=max(1, len(task.labels)),
        hidden_dropout_prob=config.encoder_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        classifier_dropout=config.dropout,
    ).to(device)
    rows = read_glue(task, glue, "train")
    encoded = encode(tokenizer, swapped(rows) if task.unordered else rows, task, length=config.length)
    batch_size = min(config.batch_size, len(encoded))
    steps = max(1, int(len(encoded) * config.epochs) // batch_size)
    groups = parameter_groups(network, lr=config.lr, decay=config.layer_decay)
    optimizer = torch.optim.AdamW(groups, eps=config.eps, weight_decay=0.0, fused=device.type == "cuda")
    schedule = get_linear_schedule_with_warmup(optimizer, int(steps * config.warmup), steps)
    order = shuffled(len(encoded), seed=seed)
    network.train()
    with progress(f"{task.title}, seed {seed}", steps, "step") as bar:
        for step in range(steps):
            batch = tokenizer.pad([encoded[next(order)] for _ in range(batch_size)], return_tensors="pt").to(device)
            network(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            bar.update(step + 1)
    network.eval()
    dev = read_glue(task, glue, "dev")
    return metric(predict(network, tokenizer, encode(tokenizer, dev, task, length=config.length), device), dev, task)


def encode(tokenizer: Any, rows: Sequence[Example], task: Task, *, length: int) -> list[dict[str, Any]]:
    """The tokenizer's inputs of each row with its label as a number."""
    pairs = None if rows[0].pair is None else [str(row.pair) for row in rows]
    found = tokenizer([row.text for row in rows], pairs, truncation=True, max_length=length)
    numbers = {label: number for number, label in enumerate(task.labels)}
    labels = [numbers[str(row.label)] if task.labels else float(row.label) / task.scale for row in rows]  # type: ignore[arg-type]
    return [
        {**{name: values[place] for name, values in found.items()}, "labels": label}
        for place, label in enumerate(labels)
    ]


def parameter_groups(network: torch.nn.Module, *, lr: float, decay: float) -> list[dict[str, Any]]:
    """The parameters by depth: the head's learning rate is `lr`, each layer's `decay` of the one above it."""
    names = [name for name, _ in network.named_parameters()]
    layers = 1 + max(int(found[1]) for name in names if (found := re.search(r"\.layers?\.(\d+)\.", name)))
    groups: dict[int, list[torch.nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        found = re.search(r"\.layers?\.(\d+)\.", name)
        depth = int(found[1]) + 1 if found else layers + 1 if name.startswith("classifier.") else 0
        groups.setdefault(depth, []).append(parameter)
    return [{"params": one, "lr": lr * decay ** (layers + 1 - depth)} for depth, one in groups.items()]


def shuffled(count: int, *, seed: int) -> Iterator[int]:
    """Row numbers without end, each epoch in another order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).tolist()


def predict(network: Any, tokenizer: Any, encoded: Sequence[dict[str, Any]], device: torch.device) -> torch.Tensor:
    """(N, C) logits."""
    found = []
    with torch.inference_mode():
        for first in range(0, len(encoded), EVALUATION_BATCH):
            batch = tokenizer.pad(list(encoded[first : first + EVALUATION_BATCH]), return_tensors="pt").to(device)
            found.append(network(**batch).logits.float().cpu())
    return torch.cat(found)


def metric(logits: torch.Tensor, rows: Sequence[Example], task: Task) -> float:
    """The task's metric in GLUE-5, in percent."""
    from scipy.stats import spearmanr
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    gold = [row.label for row in rows]
    if not task.labels:
        values = logits.squeeze(-1)
        varies = bool(values.isfinite().all() and values.min() != values.max())  # else there is no correlation
        return 100 * float(spearmanr(values.numpy(), gold).statistic) if varies else 0.0
    predicted = [task.labels[number] for number in logits.argmax(-1).tolist()]
    return 100 * float((matthews_corrcoef if task.metric == "matthews" else accuracy_score)(gold, predicted))


def _file(out: Path, task: str, seed: int) -> Path:
    return out / f"{task}-{seed}.json"


if __name__ == "__main__":
    start(command)
