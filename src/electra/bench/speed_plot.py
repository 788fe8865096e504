"""Tokens a second over batch size and length, under the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from electra.bench.grid import FUSED, OURS, PEERS, PLAIN
from electra.bench.processes import Row
from electra.bench.speed_table import machine
from electra.progress import scaled
from electra.report.plots import COLOURS, panels, standalone
from electra.report.rendering import style_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {OURS: "one", FUSED: "one", PLAIN: "good", PEERS["eager"]: "plain", PEERS["compiled"]: "two"}
ROOFLINE = "roofline (data sheet)"
NO_ROOFLINE = "no roofline: peak unknown"
_LOG_RANGE = 15.0  # highest over lowest from which only a logarithmic axis shows both


def draw(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """An SVG file's text: a panel a length over batch sizes, or one panel over lengths where there is one batch."""
    batches, lengths = sorted({row.job.batch for row in rows}), sorted({row.job.length for row in rows})
    over_lengths = len(batches) == 1 and len(lengths) > 1
    values = batches if over_lengths else lengths
    width, label = max(6.4, 1.2 + 3.0 * len(values)), f"Tokens a second, {facts['preset']}, {machine(facts)}"
    with panels("bench", width=width, height=4.3, label=label, count=len(values), shared_y=True) as (drawn, finished):
        _scale(drawn, rows)
        for axes, value in zip(drawn, values, strict=True):
            axes.set_title(f"{'batch' if over_lengths else 'length'} {value}", loc="left", fontsize=11, pad=8)
            inside = [row for row in rows if (row.job.batch if over_lengths else row.job.length) == value]
            _panel(axes, inside, over_lengths=over_lengths)
        drawn[0].set_ylabel("tokens a second")
        figure = drawn[0].get_figure()
        assert figure is not None
        figure.suptitle(f"{facts['preset']}, {machine(facts)}", x=0.01, ha="left", fontsize=12, fontweight="bold")
        legends = [axes.get_legend_handles_labels() for axes in drawn]
        entries = {label: handle for pair in legends for handle, label in zip(*pair, strict=True)}
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, fontsize=9)
    return standalone(finished[0], style_sheet())


def _panel(axes: Axes, rows: Sequence[Row], *, over_lengths: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    def place(row: Row) -> int:
        return row.job.length if over_lengths else row.job.batch

    ceiling: dict[int, float] = {}
    for kind in dict.fromkeys(row.job.kind for row in rows):
        points = []
        for row in sorted((row for row in rows if row.job.kind == kind), key=place):
            if row.figures is None:
                continue
            label = f"{kind}, {row.figures.precision}"
            points.append((place(row), row.figures.tokens_per_s))
            if kind not in PEERS.values() and row.figures.roofline_tokens_per_s:
                ceiling[place(row)] = row.figures.roofline_tokens_per_s
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=COLOURS[_COLOURS[kind]], marker="o", markersize=4.5, linewidth=1.9, label=label)
    for row in rows:
        if row.figures is None:  # at the foot of the panel, so that a gap does not look like a size nobody asked for
            axes.plot(place(row), 0.03, "x", color=COLOURS[_COLOURS[row.job.kind]], label=f"{row.job.kind}, failed",
                      transform=axes.get_xaxis_transform())  # fmt: skip
    dashes: dict[str, Any] = {"color": COLOURS["muted"], "linewidth": 1.3, "linestyle": (0, (4, 3))}
    if len(set(ceiling.values())) > 1:
        axes.plot(sorted(ceiling), [ceiling[x] for x in sorted(ceiling)], **dashes, label=ROOFLINE)
    elif ceiling:
        axes.axhline(max(ceiling.values()), **dashes, label=ROOFLINE)
    else:
        axes.plot([], [], " ", label=NO_ROOFLINE)
    axes.set_xlabel("tokens a sequence" if over_lengths else "sequences a step")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({place(row) for row in rows}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.12)


def _scale(drawn: Sequence[Axes], rows: Sequence[Row]) -> None:
    """From 0 where everything can be read so; logarithmic where the highest line is far above the lowest."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    found = [row.figures for row in rows if row.figures is not None]
    values = [value for one in found for value in (one.tokens_per_s, one.roofline_tokens_per_s) if value] or [1.0]
    for axes in drawn:
        if max(values) / min(values) > _LOG_RANGE:
            axes.set_yscale("log")
            axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(0, max(values) * 1.12)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scaled(value)))
