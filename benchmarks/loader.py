"""How fast batches are made, beside what the fastest training step eats.

    python benchmarks/loader.py DATA [--batch 128] [--length 128] [--steps 2000]

One thread makes them, as in training, while this one waits: tokens a second, and what an epoch's plan takes. A thread
that is several times faster than the step costs it nothing: the step waits only where the loader is behind.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from electra.batches.layout import Specials
from electra.batches.loader import Loader, Stream
from electra.batches.order import Cursor
from electra.config.schema import DataConfig
from electra.shards.dataset import open_data

NEEDED = 4.55e6  # tokens a second: ELECTRA-Small's million steps in an hour


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    prepared = open_data(given.data)
    words = prepared.tokenizer()
    specials = Specials(pad=words.pad_id, cls=words.cls_id, sep=words.sep_id, mask=words.mask_id)
    stream = Stream(prepared.train, DataConfig(length=given.length), specials, seed=0)
    for number in (0, 1):
        start = time.perf_counter()
        count = stream.epoch(number).layout.count
        print(f"epoch {number}: {count:,} sequences planned in {time.perf_counter() - start:.2f} s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(stream, Cursor(), batch_size=given.batch, device=device)
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    for _ in range(given.steps):
        next(batches)
    speed = given.steps * given.batch * given.length / (time.perf_counter() - start)
    loader.close()
    print(
        f"batches of {given.batch} x {given.length}: {speed / 1e6:.1f} M tokens/s, {speed / NEEDED:.1f} times the need"
    )


if __name__ == "__main__":
    main()
