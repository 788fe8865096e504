"""What a page shows of an experiment, and its plot: the paper's scores and ours in two panels, never on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from electra.fsio import write_atomic
from electra.report.answers import answer_about
from electra.report.dots import WIDTH, Dot, dots_height, dots_in_words, draw_dots
from electra.report.plots import COLOURS, SERIES, panels, standalone
from electra.report.rendering import style_sheet
from electra.report.subjects import Tried
from electra.reproduce.comparison_table import cost_cells, last_rows, named, notes, ordered, score_cells, shown_scale
from electra.reproduce.experiment import Experiment
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.outcome import Outcome, Row, read_outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT = "plot.svg"
ALONE = 6.2
"""Inches of a plot with one panel: a document shows it as wide as its text."""
Score = Callable[[Row], float | None]


def experiment_view(tried: Tried, place: int) -> dict[str, Any]:
    """Question, plots, tables and notes of an experiment; `place` makes the ids of its plots unique."""
    outcome = tried.outcome
    lines = [line for note in notes(outcome) for line in note.split("\n")]
    return {
        "id": f"experiment-{place}",
        "answer": answer_about(tried),
        "experiment": EXPERIMENTS[outcome.experiment],
        "outcome": outcome,
        "plots": [
            Markup(draw(outcome, sides=[side], name=f"experiment-{place}-{number}"))
            for number, side in enumerate(panel_scores(outcome))
        ],
        "scores": [[cell.strip("*") if n == 2 else cell for n, cell in enumerate(row)] for row in score_cells(outcome)],
        "costs": cost_cells(outcome),
        "cautions": [line.strip("*") for line in lines if line.startswith("**")],
        "notes": [line for line in lines if not line.startswith(("**", "- "))],
        "details": [line.removeprefix("- ") for line in lines if line.startswith("- ")],
        "size": shown_scale(outcome),
    }


def write_plot(folder: Path) -> Path:
    """Write plot.svg, for documents, into an experiment's folder and return where it is."""
    outcome = read_outcome(folder)
    sides = panel_scores(outcome)
    svg = draw(outcome, sides=sides, name="experiment", width=2 * WIDTH if len(sides) > 1 else ALONE)
    write_atomic(folder / PLOT, standalone(svg, style_sheet()).encode())
    return folder / PLOT


def panel_scores(outcome: Outcome) -> list[tuple[str, Score]]:
    """Titles and scores of the panels: the paper's where it has numbers, and ours."""
    source = EXPERIMENTS[outcome.experiment].source.partition(" (")[0]
    ours: tuple[str, Score] = (f"Here ({outcome.scale})", lambda row: row.score.value)
    if any(row.paper is not None for row in outcome.rows):
        return [(f"Paper ({source})", lambda row: row.paper), ours]
    return [ours]


def draw(outcome: Outcome, *, sides: Sequence[tuple[str, Score]], name: str, width: float = WIDTH) -> str:
    """A panel a side in the paper's form, as SVG: dots, lines or curves."""
    experiment = EXPERIMENTS[outcome.experiment]
    by_dots = experiment.plot == "dots"
    height = dots_height(len(last_rows(outcome))) if by_dots else 3.4
    spoken = " ".join(_in_words(outcome, title, score) for title, score in sides)
    with panels(name, width=width, height=height, count=len(sides), label=spoken) as (drawn, finished):
        for axes, (title, score) in zip(drawn, sides, strict=True):
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=10)
            ours = title.startswith("Here")
            if not outcome.rows:
                axes.text(0.5, 0.5, "nothing finished yet", ha="center", transform=axes.transAxes)
            elif by_dots:
                draw_dots(axes, _dots(outcome, score, ours=ours))
            else:
                _lines(axes, outcome, experiment, score, ours=ours)
    return finished[0]


def _dots(outcome: Outcome, score: Score, *, ours: bool) -> list[Dot]:
    return [
        Dot(
            label=row.title,
            value=score(row),
            low=row.score.low if ours and len(row.score.seeds) > 1 else None,
            high=row.score.high if ours and len(row.score.seeds) > 1 else None,
            colour="one" if ours else "two",
        )
        for row in last_rows(outcome)
    ]


def _in_words(outcome: Outcome, title: str, score: Score) -> str:
    return dots_in_words(title, [Dot(label=named(row), value=score(row)) for row in ordered(outcome)])


def _lines(axes: Axes, outcome: Outcome, experiment: Experiment, score: Score, *, ours: bool) -> None:
    curves = experiment.plot == "curves"
    groups: dict[str, list[Row]] = {}
    for row in sorted(ordered(outcome), key=lambda row: row.cost.paper_flops if curves else row.x or 0.0):
        groups.setdefault(row.title if curves else row.line, []).append(row)
    first = list(dict.fromkeys(row.title if curves else row.line for row in outcome.rows))
    names = sorted(groups, key=lambda name: (name.startswith("BERT"), first.index(name)))
    for number, name in enumerate(names):
        points = [row for row in groups[name] if score(row) is not None]
        colour = COLOURS["plain" if name.startswith("BERT") else SERIES[number % len(SERIES)]]
        xs = [_place(row, curves=curves, ours=ours) for row in points]
        ys = [score(row) or 0.0 for row in points]
        axes.plot(xs, ys, color=colour, marker="o", markersize=4.5, linewidth=1.9, label=name)
        if ours and len(outcome.seeds) > 1:
            axes.fill_between(xs, [row.score.low for row in points], [row.score.high for row in points], color=colour,
                              alpha=0.15, linewidth=0)  # fmt: skip
    axes.set_xlabel("share of the run" if curves and not ours else experiment.x_label)
    axes.set_ylabel("score")
    axes.margins(y=0.15)
    if len(names) > 1:
        axes.legend(loc="best", fontsize=9, handlelength=1.6)
    if experiment.log_x:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        axes.set_xscale("log")
        axes.set_xticks(sorted({row.x for row in outcome.rows if row.x is not None}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _place(row: Row, *, curves: bool, ours: bool) -> float:
    if curves:
        return row.cost.paper_flops if ours else row.share
    return row.x or 0.0
