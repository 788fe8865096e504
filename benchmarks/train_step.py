"""Training speed: our step against the same step written with `transformers` modules, in one run.

    python benchmarks/train_step.py --preset small --batch 128 --peer eager

The peer shares the embeddings, computes logits over the full vocabulary for every token as its modules do, uses the
same batch, length, dropout and masking rate, and torch's AdamW: on a CPU in fp32, on a GPU under bf16 autocast.
Prints one table; --json prints the figures for machines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from electra import hardware
from electra.batches.layout import Specials
from electra.config.load import load
from electra.config.schema import Config
from electra.model.cost import real_flops_per_token
from electra.model.electra import build_model
from electra.model.encoder import generator_shape
from electra.objective.table import build_objective
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

CLS, SEP, MASK = 2, 3, 4


def random_rows(config: Config, count: int) -> torch.Tensor:
    """Full-length rows of random tokens in two segments."""
    draw = np.random.default_rng(0)
    length = config.data.length
    ids = draw.integers(5, config.model.vocab_size, (count, length))
    ids[:, 0], ids[:, length // 2 - 1], ids[:, -1] = CLS, SEP, SEP
    sizes = np.tile([length, length // 2], (count, 1))
    keys = draw.integers(-(2**31), 2**31, (count, 1))
    return torch.from_numpy(np.concatenate((ids, sizes, keys), axis=1).astype(np.int32))


def ours(config: Config, device: torch.device, rows: torch.Tensor, *, compiled: bool) -> Callable[[], object]:
    model = build_model(config)
    objective = build_objective(config, Specials(pad=0, cls=CLS, sep=SEP, mask=MASK))
    master = Master(model, compute=hardware.compute_dtype(config.train.precision, device), device=device)
    stepper = Stepper(
        model,
        master,
        Update(master, config.optim),
        objective,
        world=World(),
        micro_batch=config.train.micro_batch or len(rows),
        compiled=compiled,
    )
    return lambda: stepper(rows, 1e-4)


def peer(config: Config, device: torch.device, rows: torch.Tensor, *, compiled: bool) -> Callable[[], object]:
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    def shape(width: int, layers: int, heads: int, ffn: int) -> ElectraConfig:
        return ElectraConfig(
            vocab_size=config.model.vocab_size,
            embedding_size=config.model.embedding,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=ffn,
            max_position_embeddings=config.model.positions,
            hidden_dropout_prob=config.model.dropout,
            attention_probs_dropout_prob=config.model.attention_dropout,
            attn_implementation="sdpa",
        )

    small = generator_shape(config.model, config.generator)
    generator = ElectraForMaskedLM(shape(small.width, small.layers, small.heads, small.ffn))
    m = config.model
    discriminator = ElectraForPreTraining(shape(m.width, m.layers, m.heads, m.ffn))
    discriminator.electra.embeddings = generator.electra.embeddings
    model = torch.nn.ModuleList([generator, discriminator]).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=device.type == "cuda")
    length = config.data.length
    ids = rows[:, :length].long()
    attention = torch.ones_like(ids)
    segments = (torch.arange(length, device=device) >= length // 2).long().expand_as(ids)
    slots = int((config.masking.rate + 0.005) * length)

    def forward() -> torch.Tensor:
        order = torch.rand(ids.shape, device=device).masked_fill((ids == CLS) | (ids == SEP), 2.0)
        chosen = torch.zeros_like(ids, dtype=torch.bool).scatter(1, order.argsort(1)[:, :slots], True)
        shown = torch.where(chosen & (torch.rand(ids.shape, device=device) < 0.85), MASK, ids)
        logits = generator(input_ids=shown, attention_mask=attention, token_type_ids=segments).logits
        mlm = F.cross_entropy(logits.flatten(0, 1), torch.where(chosen, ids, -100).flatten())
        with torch.no_grad():
            picked = logits.detach()[chosen]
            sampled = (picked - torch.empty_like(picked).exponential_().log()).argmax(-1)
            seen = ids.masked_scatter(chosen, sampled)
        scores = discriminator(input_ids=seen, attention_mask=attention, token_type_ids=segments).logits
        rtd = F.binary_cross_entropy_with_logits(scores.float(), (seen != ids).float())
        return mlm + 50.0 * rtd

    run = torch.compile(forward) if compiled else forward

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = run()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], object], *, device: torch.device, seconds: float) -> tuple[float, float]:
    """Median seconds a step over several stretches, and seconds until the first step was done."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    began = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - began
    step()
    wait()
    mark = time.perf_counter()
    step()
    wait()
    stretch = max(1, int(seconds / 5 / (time.perf_counter() - mark)))
    times = []
    for _ in range(5):
        mark = time.perf_counter()
        for _ in range(stretch):
            step()
        wait()
        times.append((time.perf_counter() - mark) / stretch)
    return statistics.median(times), first


def measure(name: str, args: argparse.Namespace) -> dict[str, float | None]:
    """The figures of one variant; called in a process of its own, so that neither leaves the other anything."""
    config = load(args.preset, overrides=args.overrides)
    device = hardware.device(args.device)
    batch = args.batch or config.train.batch_size
    rows = random_rows(config, batch).to(device)
    if name == "electra":
        compiled = device.type == "cuda" if args.compile == "auto" else args.compile == "on"
        if device.type == "cpu":
            hardware.keep_freed_memory()
        step = ours(config, device, rows, compiled=compiled)
    else:
        step = peer(config, device, rows, compiled=name.endswith("compiled"))
    seconds, first = timed(step, device=device, seconds=args.seconds)
    if args.profile and name == "electra":
        show_profile(step, device)
    tokens = batch * config.data.length
    peak = hardware.peak_flops(device, hardware.compute_dtype(config.train.precision, device))
    return {
        "tokens_per_s": tokens / seconds,
        "ms_per_step": seconds * 1e3,
        "mfu": tokens / seconds * real_flops_per_token(config) / peak if peak else None,
        "first_step_s": first,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


def show_profile(step: Callable[[], object], device: torch.device) -> None:
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=kinds) as seen:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="small")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--peer", default="eager", choices=["none", "eager", "compiled", "both"])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true", help="print our step's time by kernel")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    peers = {"none": [], "eager": ["eager"], "compiled": ["compiled"], "both": ["eager", "compiled"]}[args.peer]
    results = {}
    for name in ["electra", *(f"transformers {kind}" for kind in peers)]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results[name] = pool.apply(measure, (name, args))
    if args.json:
        print(json.dumps(results))
        return
    base = results["electra"]["tokens_per_s"]
    config = load(args.preset, overrides=args.overrides)
    batch = args.batch or config.train.batch_size
    print(f"{args.preset}, batch {batch} x {config.data.length}, {hardware.device(args.device)}")
    for name, row in results.items():
        print(
            f"{name:<22} {row['tokens_per_s'] / 1e3:10.2f} ktok/s {row['ms_per_step']:9.2f} ms/step"
            f"   ours is {base / row['tokens_per_s']:.2f}x   first step {row['first_step_s']:.1f} s"
            + (f"   MFU {row['mfu']:.1%}" if row["mfu"] else "")
            + (f"   {row['memory_gib']:.2f} GiB" if row["memory_gib"] is not None else "")
        )


if __name__ == "__main__":
    main()
