"""`python -m electra.bench.loader_speed DATA`: batches made a second, next to what the fastest training step needs.

One thread makes them, as in training, while this one waits. A loader several times faster than the step costs nothing:
a step waits only where the loader is behind. Layouts take turns, so that a busy machine slows them alike, and only real
tokens count, not padding.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import click
import torch

from electra.batches.epoch_plan import LAYOUTS
from electra.batches.layout import Specials
from electra.batches.loader import Loader, Stream
from electra.batches.order import Cursor
from electra.bench.start import start
from electra.config.schema import DataConfig, LayoutName
from electra.shards.dataset import open_data

NEEDED = 4.55e6  # tokens a second: ELECTRA-Small's million steps in an hour


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Sequences a batch.")
@click.option("--length", type=click.IntRange(8), default=128, show_default=True, help="Tokens a sequence.")
@click.option("--steps", type=click.IntRange(1), default=2000, show_default=True, help="Timed batches.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Times that each layout is timed.")
@click.option("--layout", "layouts", multiple=True, type=click.Choice(list(LAYOUTS)), help="[default: all]")
def command(data: Path, batch: int, length: int, steps: int, rounds: int, layouts: tuple[LayoutName, ...]) -> None:
    """Time the planning of an epoch and the making of batches from prepared DATA."""
    prepared = open_data(data)
    specials = Specials.of(prepared.tokenizer())
    found: dict[LayoutName, list[tuple[float, float]]] = {name: [] for name in layouts or LAYOUTS}
    for number in range(rounds):
        for name, times in found.items():
            stream = Stream(prepared.train, DataConfig(layout=name, length=length), specials, seed=number)
            began = time.perf_counter()
            count = stream.epoch(0).layout.count
            planned = time.perf_counter() - began
            times.append((planned, tokens_per_second(stream, batch=batch, length=length, steps=steps)))
            click.echo(f"{name}: {count:,} sequences planned in {planned:.2f} s, {times[-1][1] / 1e6:.1f} M tokens/s")
    for name, times in found.items():
        plan, speed = median(plan for plan, _ in times), median(speed for _, speed in times)
        click.echo(
            f"{name}, median: epoch planned in {plan:.2f} s; batches of {batch} x {length}: {speed / 1e6:.1f} M real "
            f"tokens/s, {speed / NEEDED:.1f} times the need"
        )


def tokens_per_second(stream: Stream, *, batch: int, length: int, steps: int) -> float:
    """Real tokens a second that one thread makes into batches."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(stream, Cursor(), batch_size=batch, device=device)
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    made = [next(batches).rows[:, length] for _ in range(steps)]
    seconds = time.perf_counter() - began
    loader.close()
    return sum(int(lengths.sum()) for lengths in made) / seconds


if __name__ == "__main__":
    start(command)
