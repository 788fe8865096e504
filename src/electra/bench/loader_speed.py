"""`python -m electra.bench.loader_speed DATA`: batches made a second, next to what the fastest training step needs.

One thread makes them, as in training, while this one waits. A loader several times faster than the step costs nothing:
a step waits only where the loader is behind.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import torch

from electra.batches.layout import Specials
from electra.batches.loader import Loader, Stream
from electra.batches.order import Cursor
from electra.bench.start import start
from electra.config.schema import DataConfig
from electra.shards.dataset import open_data

NEEDED = 4.55e6  # tokens a second: ELECTRA-Small's million steps in an hour


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Sequences a batch.")
@click.option("--length", type=click.IntRange(8), default=128, show_default=True, help="Tokens a sequence.")
@click.option("--steps", type=click.IntRange(1), default=2000, show_default=True, help="Timed batches.")
def command(data: Path, batch: int, length: int, steps: int) -> None:
    """Time the planning of two epochs and the making of batches from prepared DATA."""
    prepared = open_data(data)
    tokenizer = prepared.tokenizer()
    specials = Specials(pad=tokenizer.pad_id, cls=tokenizer.cls_id, sep=tokenizer.sep_id, mask=tokenizer.mask_id)
    stream = Stream(prepared.train, DataConfig(length=length), specials, seed=0)
    for number in (0, 1):
        began = time.perf_counter()
        count = stream.epoch(number).layout.count
        click.echo(f"epoch {number}: {count:,} sequences planned in {time.perf_counter() - began:.2f} s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(stream, Cursor(), batch_size=batch, device=device)
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    for _ in range(steps):
        next(batches)
    speed = steps * batch * length / (time.perf_counter() - began)
    loader.close()
    click.echo(f"batches of {batch} x {length}: {speed / 1e6:.1f} M tokens/s, {speed / NEEDED:.1f} times the need")


if __name__ == "__main__":
    start(command)
