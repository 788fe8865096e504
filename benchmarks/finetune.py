"""Fine-tuning speed: our trainer against a plain `transformers` loop, task by task, in one run.

    python benchmarks/finetune.py --model MODEL --data GLUE --steps 300

The peer is `ElectraForSequenceClassification` (sdpa, eager, bf16 autocast on a GPU), rows in random order padded to the
longest of their batch, torch's AdamW, clipping and a linear schedule; its rows are tokenized beforehand. Both take
the same number of steps of 32 rows. Ours is timed twice: the first steps with the capture of every shape, then as
many more.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from electra import hardware
from electra.config.finetune import FinetuneConfig
from electra.finetune.base import Base, load_base, settings_for
from electra.finetune.glue import find_tasks, has_split
from electra.finetune.jobs import Job, glue_job
from electra.finetune.network import HeadSpec
from electra.finetune.trainer import Trial

PEER_WARM_UPS = 10


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(base: Base, job: Job, config: FinetuneConfig, device: torch.device, steps: int) -> tuple[float, float]:
    """Rows a second with capturing, and after it."""
    passes = 2 * steps * config.batch_size / len(job.train.ids) + 1
    spec = HeadSpec(kind=job.task.kind, labels=job.task.labels, scale=job.task.scale)
    trial = Trial(
        base.embeddings,
        base.encoder,
        spec,
        job.train,
        config=replace(config, epochs=passes),
        seed=0,
        pad_id=base.tokenizer.pad_id,
        device=device,
    )
    rates = []
    with trial.on_stream():
        for _ in range(2):
            wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                trial.advance()
            wait(device)
            rates.append(steps * config.batch_size / (time.perf_counter() - began))
    return rates[0], rates[1]


def peer(model: Path, base: Base, job: Job, config: FinetuneConfig, device: torch.device, steps: int) -> float:
    """Rows a second of the plain loop."""
    from transformers import ElectraForSequenceClassification, get_linear_schedule_with_warmup
    from transformers.utils import logging

    logging.set_verbosity_error()  # it lists the heads it does not load, for every task

    outputs = 1 if job.task.kind == "regress" else len(job.task.labels)
    network = ElectraForSequenceClassification.from_pretrained(model, num_labels=outputs, attn_implementation="sdpa")
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps + PEER_WARM_UPS)
    targets = np.asarray(job.train.targets)
    draw = np.random.default_rng(0)
    order = np.concatenate([draw.permutation(len(targets)) for _ in range(1 + (steps + 10) * 32 // len(targets))])

    def step(number: int) -> None:
        picked = order[number * config.batch_size : (number + 1) * config.batch_size]
        longest = max(len(job.train.ids[i]) for i in picked)
        ids = torch.full((len(picked), longest), base.tokenizer.pad_id)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, i in enumerate(picked):
            one = job.train.ids[i]
            ids[row, : len(one)] = torch.tensor(one)
            mask[row, : len(one)] = 1
            types[row, job.train.a_lengths[i] : len(one)] = 1
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": types,
            "labels": torch.tensor(targets[picked]),
        }
        inputs = {name: value.to(device, non_blocking=True) for name, value in inputs.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = network(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    for number in range(PEER_WARM_UPS):
        step(number)
    wait(device)
    began = time.perf_counter()
    for number in range(PEER_WARM_UPS, PEER_WARM_UPS + steps):
        step(number)
    wait(device)
    return steps * config.batch_size / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = hardware.device(args.device)
    base = load_base(args.model)
    wanted = args.tasks.split(",") if args.tasks else None
    tasks = [task for task in find_tasks(args.data) if has_split(task, args.data, "train")]
    rows = []
    print(f"{'task':<8}{'ours/s':>9}{'first':>9}{'peer/s':>9}{'times':>7}{'with capture':>14}", flush=True)
    for task in tasks:
        if wanted and task.name not in wanted:
            continue
        config = replace(settings_for(base, task.name, kind=task.kind), device=args.device)
        job = glue_job(task, args.data, tokenizer=base.tokenizer, config=config)
        first, later = ours(base, job, config, device, args.steps)
        plain = peer(args.model, base, job, config, device, args.steps)
        row = {"task": task.name, "ours": later, "ours_with_capture": first, "peer": plain}
        rows.append(row)
        print(
            f"{task.name:<8}{later:>9.0f}{first:>9.0f}{plain:>9.0f}{later / plain:>7.2f}{first / plain:>14.2f}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
