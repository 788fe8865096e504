"""`python -m electra.bench.demo_seeds --out FOLDER`: the demo's pre-training and fine-tuning again with other seeds.

The text and the rows are the demo's own, read once; a seed changes the order of the text, the masks, the heads, which
rows are learned from and their order. Of ten seeds it says whether the bundled model is above the untrained one in all,
whether adapting lowers the held-out RTD loss in all, and whether the mean score of the adapted one is not below the
bundled one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from electra.bench.start import start
from electra.config.load import adjust
from electra.demo.demo import EPOCHS, MINUTES, config_of, encoders_of, prepare_data, read_text, rows_of
from electra.demo.documentation import PACKAGES
from electra.demo.task import FINETUNE, SEEDS, WORD_ORDER, compare
from electra.metrics.spread import summarise
from electra.pretrain import pretrain
from electra.report.reading import read_run

COLUMNS = ("seed", "steps", "loss before", "loss after", "AUC before", "AUC after", "untrained", "bundled", "adapted")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRow:
    """One seed's figures; losses and AUCs are of held-out text, accuracies of the task's development set."""

    seed: int
    steps: int
    loss: tuple[float, float]
    auc: tuple[float, float]
    untrained: float
    bundled: float
    adapted: float

    @property
    def cells(self) -> list[str]:
        """In the order of `COLUMNS`."""
        held_out = [f"{value:.4f}" for value in (*self.loss, *self.auc)]
        scores = [f"{100 * value:.1f}" for value in (self.untrained, self.bundled, self.adapted)]
        return [str(self.seed), f"{self.steps:,}", *held_out, *scores]


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for all runs.")
@click.option("--first", default=10, show_default=True, help="The first seed; those below 10 served in choosing.")
@click.option("--count", default=10, show_default=True, type=click.IntRange(1), help="How many seeds.")
@click.option("--minutes", default=MINUTES, show_default=True, help="Pre-training time of each.")
@click.option("--steps", default=0, help="So many steps instead, where other work shares the machine.")
@click.option("--epochs", default=EPOCHS, show_default=True, help="Of fine-tuning.")
@click.option("--pretrain", "overrides", multiple=True, metavar="KEY=VALUE", help="Other settings of pre-training.")
@click.option("--finetune", "settings", multiple=True, metavar="KEY=VALUE", help="Other settings of fine-tuning.")
def command(
    out: Path,
    first: int,
    count: int,
    minutes: float,
    steps: int,
    epochs: int,
    overrides: tuple[str, ...],
    settings: tuple[str, ...],
) -> None:
    """A line a seed, then what holds over all of them."""
    sample = read_text(out, PACKAGES)
    prepare_data(out, sample, from_zero=False)
    budget = [f"train.steps={steps}", "train.max_minutes=0"] if steps else [f"train.max_minutes={minutes}"]
    click.echo(_line(COLUMNS) + "\n" + _line(["---:"] * len(COLUMNS)))
    rows = []
    for seed in range(first, first + count):
        rows.append(measure(out, seed, [*budget, *overrides], epochs=epochs, settings=settings))
        click.echo(_line(rows[-1].cells))
    for line in conclusions(rows):
        click.echo(line)


def measure(out: Path, seed: int, overrides: Sequence[str], *, epochs: int, settings: Sequence[str]) -> SeedRow:
    """One seed: pre-training goes on from the bundled model, then three encoders are fine-tuned."""
    folder = out / f"seed-{seed}"
    config, start = config_of(folder / "run", [*overrides, f"seed={seed}"], from_zero=False)
    run = read_run(pretrain(config, data=out / "data", out=folder / "run", start=start))
    tuned = compare(
        encoders_of(run.folder, from_zero=False, seed=seed),
        task=WORD_ORDER,
        folder=rows_of(out, from_zero=False),
        out=folder / "tuned",
        epochs=epochs,
        first_seed=seed * SEEDS[WORD_ORDER],
        config=adjust(FINETUNE[WORD_ORDER], overrides=settings),
        each_epoch=False,
    )
    loss, auc = run.series("eval/rtd_loss"), run.series("eval/rtd_auc")
    return SeedRow(
        seed=seed,
        steps=run.step,
        loss=(loss[0][1], loss[-1][1]),
        auc=(auc[0][1], auc[-1][1]),
        untrained=tuned["untrained"].accuracy,
        bundled=tuned["bundled"].accuracy,
        adapted=tuned["pretrained"].accuracy,
    )


def conclusions(rows: Sequence[SeedRow]) -> list[str]:
    """What the demo promises, each with how often it held."""
    above = sum(row.bundled > row.untrained for row in rows)
    lower = sum(row.loss[1] < row.loss[0] for row in rows)
    means = {name: summarise(100 * getattr(row, name) for row in rows) for name in ("untrained", "bundled", "adapted")}
    lost = means["adapted"].mean < means["bundled"].mean
    listed = ", ".join(f"{name} {one.mean:.1f} (std {one.std:.1f})" for name, one in means.items())
    return [
        f"the bundled model is above the untrained one in {above} of {len(rows)} seeds",
        f"adapting lowers the held-out RTD loss in {lower} of {len(rows)} seeds",
        f"adapting {'LOWERS' if lost else 'does not lower'} the mean: {listed}",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    start(command)
