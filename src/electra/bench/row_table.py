"""`python -m electra.bench.row_table [DATA ...] [KEY=VALUE ...]`: what rows keep of a text, old layout and new.

Made-up corpora stand for awkward kinds of text; folders of prepared data are measured beside them. Settings of `[data]`
hold for the layout `sentences`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from electra.batches.epoch_plan import plan_epoch
from electra.batches.layout import Layout, Specials, Split, padding_share
from electra.bench.made_corpora import CORPORA, Lengths
from electra.bench.start import start
from electra.config.load import load
from electra.config.schema import DataConfig
from electra.shards.dataset import open_data

NO_SPECIALS = Specials(pad=0, cls=0, sep=0, mask=0)
LENGTHS = (64, 128, 512)
SHORT = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured of a layout on a corpus."""

    kept: float
    padding: float
    repeated: float
    """Share of the second epoch's rows that are runs of the first, of those that are not whole documents."""
    whole: float
    """Share of the rows that are whole documents."""
    begins: float
    """Share of the rows that begin with a sentence."""
    most: tuple[float, ...]
    """Share of the rows of at most 16, 32 and 64 tokens."""


def measure(split: Split, data: DataConfig) -> Figures:
    """The figures of two epochs of a split in one layout."""
    first, second = (plan_epoch(split, data, NO_SPECIALS, seed=0, epoch=epoch) for epoch in range(2))
    whole = whole_documents(second, split)
    rest = second.runs[~whole]
    return Figures(
        kept=first.kept_share,
        padding=padding_share(first, data.length),
        repeated=float(same_rows(first.runs, rest).mean()) if len(rest) else 0.0,
        whole=float(whole.mean()),
        begins=float(np.isin(first.runs[:, 0], split.sentence_starts).mean()),
        most=tuple(float((first.lengths <= size).mean()) for size in SHORT),
    )


def same_rows(runs: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `others` are among `runs`."""
    known = set(map(tuple, runs.tolist()))
    return np.array([run in known for run in map(tuple, others.tolist())], np.bool_)


def whole_documents(layout: Layout, split: Split) -> NDArray[np.bool_]:
    """Which rows hold a document from its beginning to its end."""
    bounds = np.unique(split.sentence_starts[split.document_starts])
    at = np.searchsorted(bounds, layout.runs[:, 0], side="right") - 1
    found: NDArray[np.bool_] = (bounds[at] == layout.runs[:, 0]) & (bounds[at + 1] == layout.runs[:, 1])
    return found


def corpora(folders: tuple[Path, ...]) -> Iterator[tuple[str, Split, Split]]:
    """Name, the corpus with its sentences as they were cut for the old layout, and as they are now."""
    for name, made in CORPORA.items():
        yield name, Lengths(made.as_formerly_cut()), Lengths(made.documents())
    for folder in folders:
        train = open_data(folder).train
        yield folder.name, train, train


@click.command()
@click.argument("arguments", nargs=-1, metavar="[DATA ...] [KEY=VALUE ...]")
def command(arguments: tuple[str, ...]) -> None:
    """Print kept tokens, padding, repeated rows and row lengths of `paper-official` and of `sentences`."""
    folders = tuple(Path(text) for text in arguments if "=" not in text)
    changed = load("small", overrides=[text for text in arguments if "=" in text]).data
    pairs = ("kept", "padding", "again")
    header = [*(f"{name}, {which}" for name in pairs for which in ("old", "new")), "whole", "begin"]
    header += [f"<= {size}" for size in SHORT]
    click.echo(f"| corpus | length | {' | '.join(header)} |")
    click.echo(f"|---|---:|{'---:|' * len(header)}")
    for name, before, now in corpora(folders):
        for length in LENGTHS:
            old = measure(before, DataConfig(layout="paper-official", length=length))
            new = measure(now, replace(changed, layout="sentences", length=length))
            shares = [old.kept, new.kept, old.padding, new.padding, old.repeated, new.repeated, new.whole, new.begins]
            click.echo(f"| {name} | {length} | {' | '.join(f'{share:.1%}' for share in (*shares, *new.most))} |")
    click.echo("again: rows of epoch 2 that are runs of epoch 1, without whole documents, whose share is in `whole`")
    click.echo("begin: rows that begin with a sentence; <= n: rows of at most n tokens; both of the new layout")


if __name__ == "__main__":
    start(command)
