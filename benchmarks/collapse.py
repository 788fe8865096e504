"""Does a deep discriminator collapse while it learns the base rate? A toy that answers on a CPU in a minute.

    python benchmarks/collapse.py --layers 12
    python benchmarks/collapse.py --layers 4
    python benchmarks/collapse.py --layers 12 --base-rate-start

Sequences hold tokens of one topic out of ten; 15 % of them are replaced by tokens of any topic. A discriminator that
mixes anything over the sequence can tell most of them. `common` is the share of the last hidden states' energy that all
tokens have in common: at 1.0 every token looks the same to the head.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F

from electra.config.load import load
from electra.metrics.rtd import auc
from electra.model.electra import Electra, build_model
from electra.train.optim import Update
from electra.train.state import Master

TOPICS, WORDS, FIRST, REPLACED = 10, 20, 5, 0.15


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--base-rate-start", action="store_true", help="objective.base_rate_start=true")
    args = parser.parse_args()
    vocab = FIRST + TOPICS * WORDS
    sizes = {"layers": args.layers, "width": args.width, "heads": max(1, args.width // 64), "ffn": 4 * args.width}
    sizes |= {"embedding": args.width // 2, "vocab_size": vocab, "positions": 64}
    changes = [f"model.{key}={value}" for key, value in sizes.items()]
    changes += ["objective.base_rate_start=true"] if args.base_rate_start else []
    config = load("small", overrides=[*changes, "generator.width=1.0", f"data.length={args.length}"])
    model = build_model(config)
    assert isinstance(model, Electra)
    parts = torch.nn.ModuleList([model.embeddings, model.discriminator, model.discriminator_head])
    master = Master(parts, compute=torch.float32, device=torch.device("cpu"))
    update = Update(master, config.optim)
    draw = np.random.default_rng(1)
    losses: list[float] = []
    for step in range(1, args.steps + 1):
        shape = (args.batch, args.length)
        topic = draw.integers(0, TOPICS, (args.batch, 1))
        ids = FIRST + topic * WORDS + draw.integers(0, WORDS, shape)
        seen = np.where(draw.random(shape) < REPLACED, draw.integers(FIRST, vocab, shape), ids)
        x, y = torch.from_numpy(seen), torch.from_numpy(seen != ids)
        hidden = model.discriminator(model.embeddings(x, torch.zeros_like(x), None), None)
        scores = model.discriminator_head(hidden)
        loss = F.binary_cross_entropy_with_logits(scores, y.float())
        (config.objective.rtd_weight * loss).backward()
        master.collect(first=True)
        update.lr.fill_(args.lr * min(1.0, step / args.warmup))
        norm, _ = update()
        losses.append(loss.item())
        if step in (1, 10, 25) or step % 50 == 0:
            flat = hidden.detach().flatten(0, 1)
            common = (flat.mean(0).square().sum() / flat.square().sum(1).mean()).item()
            area = auc(scores.detach().flatten().numpy(), y.flatten().numpy())
            recent = float(np.mean(losses[-50:]))
            print(
                f"step {step:4}  loss {recent:.4f}  AUC {area:.3f}  norm {norm.item():6.2f}  common {common:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
