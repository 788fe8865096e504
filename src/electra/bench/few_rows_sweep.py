"""`python -m electra.bench.few_rows_sweep TRIALS.toml --data GLUE --out OUT`: settings for few rows, tried.

What `electra.bench.few_rows` measures, for each trial of a TOML file (`name = ["key=value", ...]`; `name = []` is the
defaults), on seeds for choosing. The best comes first in the table. Every finished seed is a line of OUT/sweep.jsonl,
so the same command continues; a trial that fails is named and stops no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from electra.bench.few_rows import DATA, MODEL, ROWS, SeedRow, SplitRows, measure, read_rows
from electra.bench.start import start
from electra.config.finetune import FinetuneConfig
from electra.config.load import parse_overrides
from electra.errors import ElectraError, Resumable
from electra.fsio import append_synced, json_lines, read_json_lines
from electra.metrics.spread import summarise
from electra.records import read_record
from electra.speedrun.markdown import markdown_table
from electra.speedrun.screen import Trial, read_trials

FILE = "sweep.jsonl"
COLUMNS = ("trial", "accuracy", "std", "lowest", "lead", "steps", "longest s", "settings")
MOST_SECONDS = 180  # of the promise: three minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One seed of one trial, with what it was measured on."""

    trial: str
    settings: tuple[str, ...]
    model: str
    rows: int
    found: SeedRow


@click.command()
@click.argument("trials", type=click.Path(path_type=Path))
@DATA
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for rows, models and sweep.jsonl.")
@MODEL
@ROWS
@click.option("--first", default=0, show_default=True, help="The first seed; those from 10 on are for reports.")
@click.option("--count", default=2, show_default=True, type=click.IntRange(1), help="How many seeds.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    trials: Path,
    data: Path,
    out: Path,
    model: Path | None,
    rows: int,
    first: int,
    count: int,
    settings: tuple[str, ...],
) -> None:
    """A line a seed and trial, then a table, the best first. KEY=VALUE holds for every trial."""
    tried = [Trial(name=one.name, changes=(*settings, *one.changes)) for one in read_trials(trials)]
    for one in tried:
        parse_overrides(one.changes, FinetuneConfig)  # mistakes are found before the first is trained
    lines, failures = sweep(
        tried, split=read_rows(data), out=out, model=model, rows=rows, seeds=range(first, first + count)
    )
    click.echo(f"\n{table(lines)}")
    for name, reason in failures.items():
        click.echo(f"- {name} failed: {reason}")


def sweep(
    trials: Sequence[Trial], *, split: SplitRows, out: Path, model: Path | None, rows: int, seeds: Sequence[int]
) -> tuple[list[Line], dict[str, str]]:
    """A line for each trial and seed, those of before too; and why a trial failed, by name."""
    out.mkdir(parents=True, exist_ok=True)
    done = _read(out / FILE)
    lines: list[Line] = []
    failures: dict[str, str] = {}
    for seed in seeds:  # all trials of one seed first: a sweep that is stopped compares like with like
        for trial in (one for one in trials if one.name not in failures):
            key = (trial.name, trial.changes, str(model or ""), rows, seed)
            line = next((one for one in done if (*_key(one), one.found.seed) == key), None)
            if line is None:
                try:
                    found = measure(
                        split.drawn(rows, seed),
                        split.dev,
                        seed,
                        out=out / trial.name,
                        model=model,
                        settings=trial.changes,
                    )
                except Resumable:
                    raise
                except ElectraError as error:
                    failures[trial.name] = str(error)
                    continue
                line = Line(trial=trial.name, settings=trial.changes, model=str(model or ""), rows=rows, found=found)
                append_synced(out / FILE, json_lines([asdict(line)]))
            click.echo(f"{trial.name}, {line.found.line}")
            lines.append(line)
    return lines, failures


def table(lines: Sequence[Line]) -> str:
    """The trials in Markdown, by their mean accuracy."""
    by_trial: dict[str, list[Line]] = {}
    for line in lines:
        by_trial.setdefault(line.trial, []).append(line)
    rows = []
    for name, own in by_trial.items():
        ours = summarise(one.found.ours for one in own)
        lead = summarise(one.found.ours - one.found.tfidf for one in own).mean
        longest = max(one.found.seconds for one in own)
        steps = round(summarise(one.found.steps for one in own).mean)
        cells = (f"{ours.mean:.1f}", f"{ours.std:.1f}", f"{ours.min:.1f}", f"{lead:+.1f}", f"{steps:,}")
        late = " (too long)" if longest > MOST_SECONDS else ""
        settings = " ".join(f"`{one}`" for one in own[0].settings)
        rows.append((ours.mean, (name, *cells, f"{longest:.0f}{late}", settings)))
    return markdown_table(COLUMNS, [cells for _, cells in sorted(rows, key=lambda row: -row[0])])


def _key(line: Line) -> tuple[str, tuple[str, ...], str, int]:
    return line.trial, line.settings, line.model, line.rows


def _read(path: Path) -> list[Line]:
    found = read_json_lines(path) if path.is_file() else []
    return [read_record(Line, value, where=path) for value in found]


if __name__ == "__main__":
    start(command)
