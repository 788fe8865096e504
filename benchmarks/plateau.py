"""How long a small network takes to read context: by masked language modelling, or by telling replaced tokens.

    python benchmarks/plateau.py [--objective rtd] [--lr 3e-4] [--std 0.04] [--base-rate-start] [--steps 4000]

The text is a Markov chain of 256 words, each followed by one of eight, with a jump now and then. Replacements are drawn
by word frequency, so that a token alone says nothing: what is printed twelve times a run, held-out AUC (or MLM loss),
stays at 0.5 (or the frequencies' entropy) until the network compares a token with its neighbours. CPU, one thread.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.metrics.rtd import auc

WORDS, LENGTH, BATCH, WIDTH, HEADS, LAYERS, RATE = 256, 16, 64, 64, 2, 3, 0.15


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self, std: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.layers = nn.LayerNorm(WIDTH), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.dense, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        return F.gelu(self.dense(self.layers(self.norm(self.words(ids) + self.places.weight))))


def markov(tokens: int) -> Tensor:
    follows = torch.randint(0, WORDS, (WORDS, 8)).tolist()
    which, jumps, where = torch.randint(0, 8, (tokens,)), torch.rand(tokens) < 0.15, torch.randint(0, WORDS, (tokens,))
    text, here = [], 0
    for pick, jump, to in zip(which.tolist(), jumps.tolist(), where.tolist(), strict=True):
        here = to if jump else follows[here][pick]
        text.append(here)
    return torch.tensor(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", choices=("rtd", "mlm"), default="rtd")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--std", type=float, default=0.04)
    parser.add_argument("--base-rate-start", action="store_true")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    text = markov(600_000)
    train, held_out = text[:-50_000], text[-50_000:]
    network = Network(given.std)
    if given.base_rate_start:
        nn.init.constant_(network.score.bias, math.log(RATE / (1 - RATE)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=given.lr, eps=1e-6, weight_decay=0.01)

    def judged(part: Tensor) -> tuple[Tensor, Tensor]:
        """What the network says of a batch's tokens, and what is true of them."""
        start = torch.randint(0, len(part) - LENGTH, (BATCH, 1))
        ids = part[start + torch.arange(LENGTH)]
        chosen = torch.rand(ids.shape) < RATE
        if given.objective == "mlm":
            states = network(ids.masked_fill(chosen, WORDS))[chosen]
            logits = states @ network.words.weight[:WORDS].t() + network.bias
            return logits, ids[chosen]
        seen = torch.where(chosen, part[torch.randint(0, len(part), ids.shape)], ids)
        return network.score(network(seen)).flatten(), (seen != ids).flatten()

    for step in range(1, given.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = given.lr * min(1.0, step / given.warmup)
        said, truth = judged(train)
        if given.objective == "mlm":
            loss = F.cross_entropy(said, truth)
        else:
            loss = 50 * F.binary_cross_entropy_with_logits(said, truth.float())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % max(1, given.steps // 12) == 0:
            with torch.no_grad():
                said, truth = (torch.cat(part) for part in zip(*(judged(held_out) for _ in range(12)), strict=True))
            rtd = given.objective == "rtd"
            figure = auc(said.numpy(), truth.numpy()) if rtd else F.cross_entropy(said, truth).item()
            print(f"step {step}: {'AUC' if rtd else 'MLM'} {figure:.3f}", flush=True)


if __name__ == "__main__":
    main()
