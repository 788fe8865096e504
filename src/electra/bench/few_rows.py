"""`python -m electra.bench.few_rows --data GLUE`: a classifier from few rows of SST-2, beside TF-IDF.

For each seed, rows are drawn from the training set and written as a table of one's own. `electra finetune classify`
fine-tunes on that file with its defaults, so a part of the rows is held out to stop and to choose by; scikit-learn's
logistic regression over TF-IDF of words and word pairs trains on all of them. Both are scored on the dev set, which
neither has seen. Seeds below 10 served in choosing the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from electra.batches.order import permutation
from electra.bench.start import start
from electra.finetune.model_folder import load_finetuned
from electra.finetune.task_run import Options, finetune_task
from electra.fsio import json_lines, write_atomic
from electra.inference.evaluate_file import evaluate_file
from electra.metrics.spread import summarise
from electra.tasks.columns import Columns
from electra.tasks.glue_files import read_glue
from electra.tasks.glue_tasks import glue_task
from electra.tasks.rows import Example

TASK = "sst2"
DRAWN = 1 << 28  # an order of its own for drawing rows


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRow:
    """One seed's accuracies on the dev set, in percent, and the seconds of the whole fine-tuning."""

    seed: int
    ours: float
    tfidf: float
    seconds: float
    steps: int

    @property
    def line(self) -> str:
        """The figures for people."""
        ours = f"electra {self.ours:.1f} ({self.steps:,} steps, {self.seconds:.0f} s)"
        return f"seed {self.seed}: {ours}, TF-IDF {self.tfidf:.1f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRows:
    """SST-2."""

    train: Sequence[Example]
    dev: Sequence[Example]

    def drawn(self, rows: int, seed: int) -> list[Example]:
        """So many rows of the training set."""
        return [self.train[at] for at in permutation(len(self.train), seed=seed, epoch=DRAWN)[:rows].tolist()]


def read_rows(data: Path) -> SplitRows:
    """SST-2 of a GLUE folder."""
    task = glue_task(TASK)
    return SplitRows(train=read_glue(task, data, "train"), dev=read_glue(task, data, "dev"))


DATA = click.option("--data", required=True, type=click.Path(path_type=Path), help="GLUE folder with SST-2.")
MODEL = click.option("--model", type=click.Path(path_type=Path), help="Model to fine-tune.  [the package's largest]")
ROWS = click.option("--rows", default=1000, show_default=True, type=click.IntRange(20), help="Rows to train on.")


@click.command()
@DATA
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for rows and models.")
@MODEL
@ROWS
@click.option("--first", default=10, show_default=True, help="The first seed, of rows and of fine-tuning.")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1), help="How many seeds.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    data: Path, out: Path, model: Path | None, rows: int, first: int, count: int, settings: tuple[str, ...]
) -> None:
    """A line a seed, then the means."""
    split = read_rows(data)
    found = []
    for seed in range(first, first + count):
        found.append(measure(split.drawn(rows, seed), split.dev, seed, out=out, model=model, settings=settings))
        click.echo(found[-1].line)
    click.echo(conclusion(found))


def measure(
    train: Sequence[Example],
    dev: Sequence[Example],
    seed: int,
    *,
    out: Path,
    model: Path | None,
    settings: Sequence[str],
) -> SeedRow:
    """Both classifiers of one seed's rows; both sets are tables in `out`."""
    table, folder = out / f"rows-{seed}.jsonl", out / f"model-{seed}"
    _write(table, train)
    _write(out / "dev.jsonl", dev)
    began = time.monotonic()
    options = Options(settings=[*settings, f"seed={seed}"])
    result = finetune_task("classify", model=model, out=folder, data=table, columns=Columns(), options=options)
    # Of a seed that went on after a stop the clock has seen the rest only.
    seconds = max(time.monotonic() - began, result.seeds[0].seconds)
    scored = evaluate_file(load_finetuned(folder), out / "dev.jsonl", columns=Columns())
    return SeedRow(
        seed=seed,
        ours=float(scored["scores"]["accuracy"]),
        tfidf=tfidf(train, dev),
        seconds=seconds,
        steps=result.seeds[0].steps,
    )


def tfidf(train: Sequence[Example], dev: Sequence[Example]) -> float:
    """The accuracy on `dev`, in percent, of logistic regression over TF-IDF of words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = LogisticRegression(C=30.0, max_iter=1000)
    classifier.fit(vectors.fit_transform([one.text for one in train]), [one.label for one in train])
    right = classifier.predict(vectors.transform([one.text for one in dev])) == [one.label for one in dev]
    return 100 * float(right.mean())


def conclusion(rows: Sequence[SeedRow]) -> str:
    """The means and the lead of ours, with their spread over the seeds."""
    ours, other = summarise(row.ours for row in rows), summarise(row.tfidf for row in rows)
    lead = summarise(row.ours - row.tfidf for row in rows)
    return (
        f"mean of {len(rows)} seeds: electra {ours.mean:.1f} (std {ours.std:.1f}), TF-IDF {other.mean:.1f}"
        f" (std {other.std:.1f}), lead {lead.mean:+.1f} ({lead.min:+.1f} to {lead.max:+.1f}),"
        f" longest {max(row.seconds for row in rows):.0f} s"
    )


def _write(path: Path, rows: Sequence[Example]) -> None:
    write_atomic(path, json_lines({"text": one.text, "label": one.label} for one in rows))


if __name__ == "__main__":
    start(command)
