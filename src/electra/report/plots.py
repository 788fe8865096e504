"""Line and bar charts as inline SVG that takes its colours from the page, so that it follows light and dark."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from electra.errors import ConfigError, pip_install
from electra.progress import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]

# Drawn in these colours, which are then exchanged for the page's variables.
COLOURS = {
    "ink": "#010203",
    "muted": "#040506",
    "grid": "#070809",
    "one": "#0a0b0c",
    "two": "#0d0e0f",
    "three": "#1c1d1e",
    "four": "#1f2021",
    "five": "#222324",
    "six": "#252627",
    "plain": "#101112",
    "paper": "#131415",
    "good": "#161718",
    "bad": "#191a1b",
}
SERIES = ("one", "two", "three", "four", "five", "six")
MOST_LETTERS = 32
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": COLOURS["ink"],
    "legend.frameon": False,
    "figure.dpi": 72,
    "text.parse_math": False,  # a `$` in a name is a dollar
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A curve; `dots` marks its points, as for evaluations; the shape of the marks follows the colour."""

    label: str
    points: Points
    colour: str = "one"
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A dashed horizontal line to compare with, such as chance."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """What to draw; `name` makes the ids of its SVG unique on the page."""

    name: str
    title: str
    lines: Sequence[Line]
    baselines: Sequence[Baseline] = field(default_factory=tuple)
    x_label: str = "steps"
    percent: bool = False
    y_range: tuple[float, float] | None = None
    whole_x: bool = False
    thousands: bool = False
    """Write 12000 as 12k on the vertical axis."""


def line_chart(chart: Chart) -> str:
    """The chart as SVG text."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with panels(chart.name, width=4.4, height=3.1, label=in_words(chart)) as ((axes,), finished):
        for line in chart.lines:
            if line.points:
                x, y = zip(*line.points, strict=True)
                style: dict[str, Any] = {"marker": _marker(line.colour), "markersize": 4} if line.dots else {}
                style |= {"linestyle": (0, (3, 2))} if line.dashed else {}
                axes.plot(x, y, color=COLOURS[line.colour], linewidth=1.9, label=in_legend(line.label), **style)
        for baseline in chart.baselines:
            axes.axhline(baseline.value, color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                baseline.label,
                (0.995, baseline.value),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                fontsize=9,
                color=COLOURS["muted"],
            )
        axes.set_xlabel(chart.x_label)
        axes.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", pad=12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=chart.whole_x))
        far = max((x for line in chart.lines for x, _ in line.points), default=0.0) >= 10_000
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: scaled(x) if far and x else f"{x:g}"))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        plain = scaled if chart.thousands else "{:.4g}".format
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        if chart.percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        if chart.y_range:
            axes.set_ylim(*chart.y_range)
        if len([line for line in chart.lines if line.points]) > 1:
            axes.legend(loc="best", fontsize=9.5, handlelength=1.6)
    return finished[0]


def bar_chart(
    name: str, *, title: str, bars: Sequence[tuple[str, float, str]], baseline: Baseline | None, top: float = 1.0
) -> str:
    """Horizontal bars (label, share, colour) with their values written at their ends."""
    from matplotlib.ticker import FuncFormatter

    spoken = f"Bar chart. {title}: " + ", ".join(f"{label} {value:.1%}" for label, value, _ in bars) + "."
    with panels(name, width=4.4, height=3.1, label=spoken) as ((axes,), finished):
        for place, (_, value, colour) in enumerate(bars):
            axes.barh(place, value, height=0.62, color=COLOURS[colour])
            axes.annotate(
                f"{value:.1%}", (value, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=12,
                fontweight="bold",
            )  # fmt: skip
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        axes.tick_params(axis="y", labelsize=11, labelcolor=COLOURS["ink"])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_axisbelow(True)
        axes.set_xlim(0, top)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=12)
        if baseline is not None:
            axes.axvline(baseline.value, color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                baseline.label, (baseline.value, len(bars) / 2 - 0.5), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=9, color=COLOURS["muted"],
            )  # fmt: skip
    return finished[0]


def in_words(chart: Chart) -> str:
    """The chart as a sentence, for people who hear it: where each curve begins and ends."""
    drawn = [line for line in chart.lines if line.points]
    ends = (
        f"{line.label}: {_spoken(line.points[0][1], chart)} at {line.points[0][0]:,.6g}, "
        f"{_spoken(line.points[-1][1], chart)} at {line.points[-1][0]:,.6g} {chart.x_label}"
        for line in drawn
    )
    return f"Line chart. {chart.title}. {'; '.join(ends) if drawn else 'Nothing measured yet'}."


def in_legend(label: str) -> str:
    """A label as a legend can show it: short, and not with the underscore that hides it."""
    cut = label if len(label) <= MOST_LETTERS else label[: MOST_LETTERS - 1] + "…"
    return f" {cut}" if cut.startswith("_") else cut


def powers_of_ten(axes: Axes) -> None:
    """Label a logarithmic horizontal axis by 10¹², 10¹⁴ and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: "10" + str(round(math.log10(x))).translate(_RAISED) if x > 0 else "")
    )


def _spoken(value: float, chart: Chart) -> str:
    return f"{value:.1%}" if chart.percent else f"{value:,.4g}"


def _marker(colour: str) -> str:
    return _MARKERS[SERIES.index(colour)] if colour in SERIES else "o"


@contextmanager
def panels(
    name: str, *, width: float, height: float, label: str, count: int = 1, shared_y: bool = False
) -> Iterator[tuple[list[Axes], list[str]]]:
    """Axes side by side to draw on in `COLOURS`; when the block ends, the list holds the SVG.

    `label` is what the picture says, for people who hear it.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError("a chart", "needs matplotlib", fix=pip_install("report")) from error
    finished: list[str] = []
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")  # a reader's browser has the fonts that are missing here
        figure = Figure(figsize=(width, height), layout="constrained" if count > 1 else None)
        figure.patch.set_visible(False)
        drawn = list(figure.subplots(1, count, squeeze=False, sharey=shared_y)[0])
        for axes in drawn:
            axes.patch.set_visible(False)
        yield drawn, finished
        if count == 1:
            _place(drawn[0], width=72 * width, height=72 * height)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    finished.append(_inline(out.getvalue(), name, label))


def _place(axes: Axes, *, width: float, height: float) -> None:
    """Leave as much room around the axes as their labels need; matplotlib's own layout takes as long as drawing."""
    axis, figure = axes.yaxis, axes.get_figure()
    assert figure is not None
    ticks = axis.get_major_formatter().format_ticks(list(axis.get_majorticklocs()))
    letters = max((len(tick) + tick.count("%") for tick in ticks), default=0)  # a wide one
    left = 6 + 6.2 * letters + (16 if axes.get_ylabel() else 0)
    sides = {"left": left / width, "right": 1 - 12 / width, "bottom": 36 / height, "top": 1 - 26 / height}
    figure.subplots_adjust(**sides)


def standalone(svg: str, style: str) -> str:
    """An inline chart as a file of its own, in the light colours of a page's style sheet, on white."""
    light = style[: style.index("}")]
    for name, value in re.findall(r"--(\w+):\s*([^;]+);", light):
        svg = svg.replace(f"var(--{name})", value.replace('"', "'"))
    opening, _, rest = svg.partition(">")
    back = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{opening} xmlns="http://www.w3.org/2000/svg">{back}{rest}\n'


def _inline(svg: str, name: str, label: str) -> str:
    """SVG for the inside of a page: no prolog, metadata or fixed size, ids of its own, the page's colours and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view = re.search(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", svg)
    assert view is not None, "matplotlib writes one"
    svg = f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(label)}">' + svg[view.end() :]
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    for colour, written in COLOURS.items():
        svg = svg.replace(written, f"var(--{colour})")
    return svg.strip()
