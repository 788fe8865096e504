"""Tokens a second over batch size and length, under the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from electra.bench.plan import FUSED, OURS, PEERS, PLAIN
from electra.bench.run import Row
from electra.bench.table import machine
from electra.progress import scaled
from electra.report.plots import COLOURS, panels, standalone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {OURS: "one", FUSED: "one", PLAIN: "good", PEERS["eager"]: "plain", PEERS["compiled"]: "two"}
_WIDE_RANGE = 15.0  # highest over lowest from which only a logarithmic axis shows both


def draw(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """An SVG file's text: a panel a length over batch sizes, or one panel over lengths where there is one batch."""
    batches = sorted({row.job.batch for row in rows})
    lengths = sorted({row.job.length for row in rows})
    over_lengths = len(batches) == 1 and len(lengths) > 1
    shown: Sequence[int] = batches if over_lengths else lengths
    measured = [row for row in rows if row.figures is not None]
    width = max(6.4, 1.2 + 3.0 * len(shown))
    with panels("bench", width=width, height=4.3, count=len(shown), shared_y=True) as (drawn, finished):
        for axes, value in zip(drawn, shown, strict=True):
            inside = [row for row in measured if (row.job.batch if over_lengths else row.job.length) == value]
            axes.set_title(f"{'batch' if over_lengths else 'length'} {value}", loc="left", fontsize=11, pad=8)
            _panel(axes, inside, over_lengths=over_lengths)
        _scale(drawn, measured)
        drawn[0].set_ylabel("tokens a second")
        figure = drawn[0].get_figure()
        assert figure is not None
        precisions = {row.figures.precision for row in measured if row.figures and row.job.kind not in PEERS.values()}
        about = ", ".join([facts["preset"], machine(facts), *sorted(precisions)])
        figure.suptitle(about, x=0.01, ha="left", fontsize=12, fontweight="bold")
        handles = {
            label: handle for axes in drawn for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9.5)
    style = (resources.files("electra.report") / "page.css").read_text(encoding="utf-8")
    return standalone(finished[0], style)


def _panel(axes: Axes, rows: Sequence[Row], *, over_lengths: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    ceiling: dict[int, float] = {}
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        assert row.figures is not None
        place = row.job.length if over_lengths else row.job.batch
        lines.setdefault(row.job.kind, []).append((place, row.figures.tokens_per_s))
        if row.job.kind not in PEERS.values() and row.figures.roofline_tokens_per_s:
            ceiling[place] = row.figures.roofline_tokens_per_s
    for kind, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, color=COLOURS[_COLOURS[kind]], marker="o", markersize=4.5, linewidth=1.9, label=kind)
    dashes: dict[str, Any] = {"color": COLOURS["muted"], "linewidth": 1.3, "linestyle": (0, (4, 3))}
    if len(set(ceiling.values())) > 1:
        axes.plot(sorted(ceiling), [ceiling[place] for place in sorted(ceiling)], **dashes, label="roofline")
    elif ceiling:
        axes.axhline(max(ceiling.values()), **dashes, label="roofline")
    elif rows:
        axes.plot([], [], " ", label="no roofline: this device's peak is not known")
    axes.set_xlabel("tokens a sequence" if over_lengths else "sequences a step")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({place for points in lines.values() for place, _ in points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.12)


def _scale(drawn: Sequence[Axes], rows: Sequence[Row]) -> None:
    """From 0 where everything can be seen so; logarithmic where the highest line is far above the lowest."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    found = [row.figures for row in rows if row.figures is not None]
    values = [value for one in found for value in (one.tokens_per_s, one.roofline_tokens_per_s) if value]
    if not values:
        return
    for axes in drawn:
        if max(values) / min(values) > _WIDE_RANGE:
            axes.set_yscale("log")
            axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, max(values) * 1.12)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scaled(value)))
