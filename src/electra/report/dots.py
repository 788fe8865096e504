"""Dot charts as inline SVG: scores with their range over seeds, and scores against training FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from electra.report.plots import COLOURS, Baseline, in_legend, panels, powers_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.4
MOST_NAMES = 5
"""Of our points in a chart of costs."""
LEAST_RANGE = 3.0
"""Percentage points on the axis at least: a tenth of a point must look small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A score; `low` and `high` are the range over its seeds, where there are several."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    colour: str = "one"

    @property
    def known(self) -> list[float]:
        return [one for one in (self.value, self.low, self.high) if one is not None and math.isfinite(one)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """A score at so many training FLOPs."""

    label: str
    flops: float
    value: float


def dot_chart(name: str, *, title: str, dots: Sequence[Dot], baseline: Baseline | None) -> str:
    """A line a score in percent: its name above, the dot at its place, a line for the range over seeds."""
    height = dots_height(len(dots))
    with panels(name, width=WIDTH, height=height, label=dots_in_words(title, dots)) as ((axes,), finished):
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=8)
        draw_dots(axes, dots, unit="percent", baseline=baseline)
    return finished[0]


def dots_height(count: int) -> float:
    """Inches that so many dots need, each with its name above."""
    return 0.9 + 0.62 * max(1, count)


def draw_dots(axes: Axes, dots: Sequence[Dot], *, unit: str = "score", baseline: Baseline | None = None) -> None:
    """Draw on given axes; the axis of scores ends near the lowest and the highest, since no dot needs a zero."""
    from matplotlib.ticker import MaxNLocator

    known = [value for dot in dots for value in dot.known] + ([baseline.value] if baseline else [])
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = max(high - low, LEAST_RANGE)
    axes.set_xlim(low - 0.12 * margin, high + 0.22 * margin)
    for place, dot in enumerate(dots):
        axes.axhline(place, color=COLOURS["grid"], linewidth=1, zorder=0)
        axes.annotate(in_legend(dot.label), (0, place), xycoords=("axes fraction", "data"), xytext=(0, 10), fontsize=10,
                      textcoords="offset points", color=COLOURS["ink"])  # fmt: skip
        if dot.value is None or not math.isfinite(dot.value):
            axes.annotate("no score", (0, place), xycoords=("axes fraction", "data"), xytext=(0, -4), fontsize=9,
                          textcoords="offset points", color=COLOURS["muted"])  # fmt: skip
            continue
        end = dot.value
        if dot.low is not None and dot.high is not None and dot.high > dot.low:
            axes.plot((dot.low, dot.high), (place, place), color=COLOURS[dot.colour], linewidth=2.4, alpha=0.55)
            end = max(end, dot.high)
        axes.plot(dot.value, place, "o", color=COLOURS[dot.colour], markersize=8)
        axes.annotate(f"{dot.value:.1f}", (end, place), xytext=(8, 0), textcoords="offset points", va="center",
                      fontsize=11, fontweight="bold")  # fmt: skip
    if baseline is not None:
        axes.axvline(baseline.value, color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(baseline.label, (baseline.value, 0), xycoords=("data", "axes fraction"), xytext=(3, 3),
                      textcoords="offset points", fontsize=9, color=COLOURS["muted"])  # fmt: skip
    axes.set_ylim(len(dots) - 0.5, -0.85)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], min_n_ticks=3))
    several = any(dot.low is not None and dot.low != dot.high for dot in dots)
    axes.set_xlabel(unit + (" (line: range over seeds)" if several else ""))


def cost_chart(
    name: str, *, title: str, ours: Sequence[CostPoint], paper: Sequence[tuple[str, Sequence[CostPoint]]], unit: str
) -> str:
    """Scores over training FLOPs: ours as filled diamonds, each line of the paper's points hollow and joined."""
    with panels(name, width=WIDTH, height=3.5, label=_costs_in_words(title, ours, paper)) as ((axes,), finished):
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=10)
        powers_of_ten(axes)
        for (label, points), colour in zip(paper, ("two", "plain"), strict=False):
            xs, ys = [point.flops for point in points], [point.value for point in points]
            axes.plot(xs, ys, color=COLOURS[colour], marker="o", markersize=5.5, markerfacecolor=COLOURS["paper"],
                      linewidth=1.3, label=label)  # fmt: skip
            for point in points:
                _name(axes, point, below=colour == "plain")
        if ours:
            axes.plot([one.flops for one in ours], [one.value for one in ours], "D", color=COLOURS["one"],
                      markersize=7, label="here")  # fmt: skip
        for point in ours if len(ours) <= MOST_NAMES else ():  # the table beside it has them all
            _name(axes, point, bold=True)
        axes.set_xlabel("training FLOPs, the paper's rules")
        axes.set_ylabel(unit)
        axes.margins(x=0.16, y=0.14)
        if paper:
            axes.legend(loc="lower right", fontsize=9, handlelength=1.6)
    return finished[0]


def _name(axes: Axes, point: CostPoint, *, bold: bool = False, below: bool = False) -> None:
    if point.label:
        axes.annotate(in_legend(point.label), (point.flops, point.value), xytext=(0, -14 if below else 7),
                      textcoords="offset points", ha="center", fontsize=8.5, fontweight="bold" if bold else "normal",
                      color=COLOURS["ink" if bold else "muted"])  # fmt: skip


def dots_in_words(title: str, dots: Sequence[Dot]) -> str:
    """The chart as a sentence, for people who hear it."""
    values = (f"{dot.label} {dot.value:.1f}" if dot.known else f"{dot.label}: no score" for dot in dots)
    return f"Dot chart. {title}: {', '.join(values)}."


def _costs_in_words(title: str, ours: Sequence[CostPoint], paper: Sequence[tuple[str, Sequence[CostPoint]]]) -> str:
    groups = [("here", ours), *paper]
    parts = [
        f"{label}: " + ", ".join(f"{one.label} {one.value:.1f} at {one.flops:.1e} FLOPs" for one in points if one.label)
        for label, points in groups
        if points
    ]
    return f"Scores over training FLOPs. {title}. {'; '.join(parts)}."
