"""An experiment's page and plot: the paper's scores and ours in two panels, never on one axis."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from electra.errors import ConfigError
from electra.fsio import write_atomic
from electra.report.plots import COLOURS, panels, standalone
from electra.reproduce.comparison_table import cost_cells, last_rows, notes, ordered, score_cells, shown_scale
from electra.reproduce.experiment import Experiment
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.outcome import Outcome, Row, read_outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE, PLOT = "index.html", "plot.svg"
_ORDER = ("one", "two", "good", "bad", "muted", "ink", "plain")
Score = Callable[[Row], float | None]


def require_drawing() -> None:
    """Refuse now what would fail after hours: the packages that draw the page."""
    for package in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError("electra reproduce", f"needs {package}", fix="pip install 'electra[report]'")


def write_page(out: Path) -> Path:
    """Write plot.svg and index.html from a folder's results.json; where the page is."""
    outcome = read_outcome(out)
    style = (resources.files("electra.report") / "page.css").read_text(encoding="utf-8")
    svg = draw(outcome)
    write_atomic(out / PLOT, standalone(svg, style).encode())
    write_atomic(out / PAGE, render(outcome, svg=svg, style=style).encode())
    return out / PAGE


def render(outcome: Outcome, *, svg: str, style: str) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    text = (resources.files("electra.report") / "experiment.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    lines = [line for note in notes(outcome) for line in note.split("\n")]
    return environment.from_string(text).render(
        style=Markup(style),
        plot=Markup(svg),
        experiment=EXPERIMENTS[outcome.experiment],
        outcome=outcome,
        scores=[[cell.strip("*") if n == 2 else cell for n, cell in enumerate(row)] for row in score_cells(outcome)],
        costs=cost_cells(outcome),
        cautions=[line.strip("*") for line in lines if line.startswith("**")],
        notes=[line for line in lines if not line.startswith(("**", "- "))],
        details=[line.removeprefix("- ") for line in lines if line.startswith("- ")],
        size=shown_scale(outcome),
    )


def draw(outcome: Outcome) -> str:
    """The plot in the paper's form as SVG for a page: bars, lines or curves; the paper's panel where it has numbers."""
    experiment = EXPERIMENTS[outcome.experiment]
    has_paper = any(row.paper is not None for row in outcome.rows)
    sides: list[tuple[str, Score]] = [(f"Here ({outcome.scale})", lambda row: row.score.value)]
    if has_paper:
        sides.insert(0, (f"Paper ({experiment.source.partition(' (')[0]})", lambda row: row.paper))
    bars = experiment.plot == "bars"
    height = max(2.4, 0.9 + 0.5 * len(last_rows(outcome))) if bars else 3.6
    width = 8.6 if has_paper else 6.2
    with panels("experiment", width=width, height=height, count=len(sides), shared_y=bars) as (drawn, finished):
        for axes, (title, score) in zip(drawn, sides, strict=True):
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=10)
            ours = title.startswith("Here")
            if not outcome.rows:
                axes.text(0.5, 0.5, "nothing finished yet", ha="center", transform=axes.transAxes)
            elif bars:
                _bars(axes, last_rows(outcome), score, ours=ours)
            else:
                _lines(axes, outcome, experiment, score, ours=ours)
        if not bars and _several(outcome, experiment):
            drawn[-1].legend(loc="best", fontsize=9, handlelength=1.6)
    return finished[0]


def _bars(axes: Axes, rows: Sequence[Row], score: Score, *, ours: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    values = [score(row) for row in rows]
    known = [value for value in values if value is not None and math.isfinite(value)]
    ends = [end for row in rows for end in (row.score.low, row.score.high)] if ours else []
    low, high = min([*known, *ends]), max([*known, *ends])
    margin = max(high - low, 1.0)
    floor = max(0.0, low - 0.6 * margin)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value is None or not math.isfinite(value):
            axes.annotate("not in the paper", (floor, place), xytext=(5, 0), textcoords="offset points", va="center",
                          fontsize=9, color=COLOURS["muted"])  # fmt: skip
            continue
        axes.barh(place, value - floor, left=floor, height=0.62, color=COLOURS["one" if ours else "plain"])
        end = value
        if ours and len(row.score.seeds) > 1:
            axes.plot((row.score.low, row.score.high), (place, place), color=COLOURS["ink"], linewidth=1.4)
            end = max(value, row.score.high)
        axes.annotate(f"{value:.1f}", (end, place), xytext=(5, 0), textcoords="offset points", va="center",
                      fontsize=11, fontweight="bold")  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.title for row in rows])
    axes.tick_params(axis="y", labelsize=10.5, labelcolor=COLOURS["ink"])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(floor, high + 0.35 * margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], min_n_ticks=3))
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.set_xlabel("score" + (" (line: range over seeds)" if ours and len(rows[0].score.seeds) > 1 else ""))


def _lines(axes: Axes, outcome: Outcome, experiment: Experiment, score: Score, *, ours: bool) -> None:
    curves = experiment.plot == "curves"
    groups: dict[str, list[Row]] = {}
    for row in sorted(ordered(outcome), key=lambda row: row.cost.paper_flops if curves else row.x or 0.0):
        groups.setdefault(row.title if curves else row.line, []).append(row)
    first = list(dict.fromkeys(row.title if curves else row.line for row in outcome.rows))
    names = sorted(groups, key=lambda name: (name.startswith("BERT"), first.index(name)))
    for number, name in enumerate(names):
        points = [row for row in groups[name] if score(row) is not None]
        colour = COLOURS["plain" if name.startswith("BERT") else _ORDER[number % len(_ORDER)]]
        xs = [_place(row, curves=curves, ours=ours) for row in points]
        ys = [score(row) or 0.0 for row in points]
        axes.plot(xs, ys, color=colour, marker="o", markersize=4.5, linewidth=1.9, label=name)
        if ours and len(outcome.seeds) > 1:
            axes.fill_between(xs, [row.score.low for row in points], [row.score.high for row in points], color=colour,
                              alpha=0.15, linewidth=0)  # fmt: skip
    axes.set_xlabel("share of the run" if curves and not ours else experiment.x_label)
    axes.set_ylabel("score")
    axes.margins(y=0.15)
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


def _several(outcome: Outcome, experiment: Experiment) -> bool:
    return len({row.title if experiment.plot == "curves" else row.line for row in outcome.rows}) > 1
