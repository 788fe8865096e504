"""Results as a printed table: every run, median, mean and spread, with notes below."""

from __future__ import annotations

import math
import sys

from electra.display import aligned
from electra.finetune.task_results import Suite, TaskResult
from electra.terminal import visible

_LEFT = 3  # columns of text before those of numbers


def show(suite: Suite) -> None:
    """Print the table on stdout: drawn on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        print(visible(plain(suite)))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD)
    header, *body = cells(suite)
    for number, name in enumerate(header):
        drawn.add_column(name, justify="left" if number < _LEFT else "right", no_wrap=number != _LEFT - 1)
    for row in body:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    console = Console()
    console.print(drawn)
    for line in footer(suite):
        console.print(Text(visible(line)), soft_wrap=True)


def plain(suite: Suite) -> str:
    """The table as text in columns, with its notes below."""
    below = footer(suite)
    return "\n".join([*aligned(cells(suite), left=_LEFT), *(["", *below] if below else [])])


def cells(suite: Suite) -> list[tuple[str, ...]]:
    """The header, then a row for each metric of each task."""
    orders = {tuple(run.seed for run in result.seeds) for result in suite.results}
    same = len(orders) == 1
    seeds = " ".join(["seed" if same and len(min(orders)) == 1 else "seeds", *(map(str, min(orders)) if same else ())])
    return [
        ("task", "metric", seeds, "median", "mean", "std", "range"),
        *(
            _row(result, metric, first=number == 0, numbered=not same)
            for result in suite.results
            for number, metric in enumerate(result.metrics)
        ),
    ]


def footer(suite: Suite) -> list[str]:
    """Notes below the table: averages, then each task's subsets, notes and stuck runs."""
    lines = [f"{average.label}: {_score(average.value)}" for average in suite.averages]
    for result in suite.results:
        lines += [f"{result.title}: {label}" for label in result.labels]
        if result.stuck:
            seeds = ", ".join(map(str, result.stuck))
            which = f"seed {seeds} is" if len(result.stuck) == 1 else f"seeds {seeds} are"
            lines.append(f"{result.title}: {which} stuck (one answer for every row) and counted like any other")
    return [_printable(line) for line in lines]


def _row(result: TaskResult, metric: str, *, first: bool, numbered: bool) -> tuple[str, ...]:
    summary = result.summary(metric)
    runs = [
        (f"{run.seed}: " if numbered else "") + _score(run.scores[metric]) + (" stuck" if run.stuck else "")
        for run in result.seeds
    ]
    several = summary.n > 1
    title = result.title + (" (subset)" if result.subset else "")
    return (
        _printable(title) if first else "",
        _printable(metric),
        ", ".join(runs) if numbered or result.stuck else " ".join(runs),
        _score(summary.median),
        _score(summary.mean),
        _score(summary.std) if several else "-",
        f"{_score(summary.min)}..{_score(summary.max)}" if several else "-",
    )


def _score(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
