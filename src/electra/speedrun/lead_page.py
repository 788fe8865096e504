"""RTD beside MLM, for people: a table of leads, and a plot of scores and leads over the minutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from electra.report.plots import COLOURS, panels, standalone
from electra.report.rendering import style_sheet
from electra.speedrun.alike import recipe_differences
from electra.speedrun.lead import MEASURES, Comparison, Lead, Series, leads
from electra.speedrun.markdown import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("equal", "at", "RTD", "MLM", "lead", "95 % interval")
HOW_TO_READ = (
    "Lead: GLUE-5 of RTD less that of MLM. The interval is of resampled fine-tuning seeds, and of pre-training seeds\n"
    "where there are several. `~`: on the straight line, over the logarithm, between two runs."
)
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


def section(comparison: Comparison) -> list[str]:
    """Paragraphs of Markdown: a table for each RTD run beside each MLM one; nothing where there is no such pair."""
    parts = []
    for rtd, mlm in comparison.pairs:
        found = [lead for measure in MEASURES for lead in leads(rtd, mlm, measure)]
        title = f"**{rtd.title}** (RTD) beside **{mlm.title}** (MLM), scored by {comparison.scorer}"
        runs = _runs(rtd, mlm)
        if found:
            parts += [f"{title}: {runs}.", markdown_table(COLUMNS, [_row(lead, rtd, mlm) for lead in found])]
            parts += _costs(rtd, mlm)
        else:
            parts.append(f"{title}: {runs}, nothing equal between them.")
        parts += _alike(rtd, mlm)
    return [*parts, HOW_TO_READ] if parts else []


def plot(comparison: Comparison) -> str:
    """An SVG file's text: GLUE-5 with the range of its seeds over the minutes, and the lead with its interval."""
    pairs = [(rtd, mlm, found) for rtd, mlm in comparison.pairs if (found := leads(rtd, mlm, "minutes"))]
    count = 2 if pairs else 1
    spoken = _in_words(comparison, [(f"{rtd.title} less {mlm.title}", found) for rtd, mlm, found in pairs])
    with panels("lead", width=4.6 * count, height=3.5, label=spoken, count=count) as (drawn, finished):
        _titled(drawn[0], "GLUE-5 (line: range over seeds)")
        short = [series.runs[0].label for series in comparison.series]
        names = [one if short.count(one) == 1 else comparison.series[place].title for place, one in enumerate(short)]
        for number, (series, shift) in enumerate(zip(comparison.series, _shifts(len(comparison.series)), strict=True)):
            same = [one for one in comparison.series if one.detects == series.detects]
            dots = [(_moved(p.minutes, shift), p.glue5, min(p.seeds), max(p.seeds)) for p in series.points]
            label, colour = ("RTD", "one") if series.detects else ("MLM", "two")
            style: dict[str, Any] = {"colour": colour, "place": same.index(series), "written": "{:.1f}"}
            _draw(drawn[0], dots, label=f"{label}: {names[number]}", right=number % 2 > 0, **style)
        if pairs:
            _titled(drawn[1], "Lead of RTD over MLM (95 % interval)")
            drawn[1].axhline(0, color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
            for place, ((rtd, mlm, found), shift) in enumerate(zip(pairs, _shifts(len(pairs)), strict=True)):
                dots = [(_moved(lead.at, shift), lead.value, lead.low, lead.high) for lead in found]
                name = f"{rtd.title} less {mlm.title}" if pairs[1:] else ""
                _draw(drawn[1], dots, label=name, colour="one", place=place, written="{:+.1f}", right=place % 2 > 0)
        for axes in drawn:
            _minutes(axes, sorted({point.minutes for series in comparison.series for point in series.points}))
            _legend(axes, below=bool(pairs))
    return standalone(finished[0], style_sheet())


def _row(lead: Lead, rtd: Series, mlm: Series) -> tuple[str, ...]:
    at = f"{lead.at:g}" if lead.measure == "minutes" else f"{lead.at:.2e}"
    scores = (
        f"{'~' if lead.between == title else ''}{value:.1f}"
        for title, value in ((rtd.title, lead.rtd), (mlm.title, lead.mlm))
    )
    return lead.measure, at, *scores, f"**{lead.value:+.1f}**", f"{lead.low:+.1f} to {lead.high:+.1f}"


def _costs(rtd: Series, mlm: Series) -> list[str]:
    """What MLM computed in as many minutes, by either rule."""
    theirs = {point.minutes: point for point in mlm.points}
    shared = [(point, theirs[point.minutes]) for point in rtd.points if point.minutes in theirs]
    lines = [
        f"- In {ours.minutes:g} minutes MLM computed {other.flops_real / ours.flops_real:.2f} times the FLOPs of RTD,"
        f" by the paper's rules {other.flops_paper / ours.flops_paper:.2f} times."
        for ours, other in shared
        if ours.flops_real and ours.flops_paper
    ]
    return ["\n".join(lines)] if lines else []


def _alike(rtd: Series, mlm: Series) -> list[str]:
    """In what the recipes differ, and what is not known to be equal of runs that are taken together."""
    found = recipe_differences(rtd.runs[0], mlm.runs[0])
    pooled = [one for one in (rtd, mlm) if one.runs[1:] and not all(run.settings for run in one.runs)]
    source = "" if rtd.runs[0].settings and mlm.runs[0].settings else ", by the presets of this version"
    recipes = [f"- Recipes differ{source} (RTD, MLM): {'; '.join(found)}."] if found else []
    return recipes + [
        f"- Not every record of {series.title} has its settings: of its runs, parameters and FLOPs per token are equal."
        for series in pooled
    ]


def _runs(rtd: Series, mlm: Series) -> str:
    ours, theirs = (", ".join(_count(len(one.runs), one.minutes) for one in series.points) for series in (rtd, mlm))
    return f"{ours} each" if ours == theirs else f"{ours} of {rtd.title}, {theirs} of {mlm.title}"


def _count(runs: int, minutes: float) -> str:
    return f"{'one run' if runs == 1 else f'{runs} runs'} of {minutes:g} minutes"


def _titled(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=10)


def _draw(
    axes: Axes,
    dots: Sequence[tuple[float, float, float, float]],
    *,
    label: str,
    colour: str,
    place: int,
    written: str,
    right: bool,
) -> None:
    """Dots with their ranges, joined: (place on the axis, value, low, high) each, the value written left or right."""
    offset: dict[str, Any] = {"xytext": (7, 4), "ha": "left"} if right else {"xytext": (-7, 4), "ha": "right"}
    style: dict[str, Any] = {"linestyle": _DASHES[place % len(_DASHES)], "marker": _MARKERS[place % len(_MARKERS)]}
    x, y = [dot[0] for dot in dots], [dot[1] for dot in dots]
    axes.plot(x, y, color=COLOURS[colour], markersize=7, linewidth=1.9, label=label, **style)
    for at, value, low, high in dots:
        axes.plot((at, at), (low, high), color=COLOURS[colour], linewidth=2.4, alpha=0.55)
        axes.annotate(written.format(value), (at, value), textcoords="offset points", fontsize=9.5, **offset)


def _shifts(count: int) -> list[float]:
    return [place - (count - 1) / 2 for place in range(count)]


def _moved(minutes: float, shift: float) -> float:
    """A place on the logarithmic axis, so far beside the minutes that ranges do not hide each other."""
    return float(minutes * 1.012**shift)


def _minutes(axes: Axes, minutes: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(min(minutes) / 1.25, max(minutes) * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(list(minutes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel("minutes")
    axes.margins(y=0.2)


def _legend(axes: Axes, *, below: bool) -> None:
    """Below the axes where the layout makes room: with few runs, each anywhere, no place inside is sure to be free."""
    if any(axes.get_legend_handles_labels()[1]):
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.03, -0.16)} if below else {"loc": "best"}
        axes.legend(fontsize=9, handlelength=2.2, **place)


def _in_words(comparison: Comparison, ahead: Sequence[tuple[str, Sequence[Lead]]]) -> str:
    """The plot as sentences, for people who hear it."""
    scores = [
        f"{series.title}: " + ", ".join(f"{point.glue5:.1f} at {point.minutes:g} minutes" for point in series.points)
        for series in comparison.series
    ]
    lead = [
        f"{name}: " + ", ".join(f"{one.value:+.1f} at {one.at:g} minutes" for one in found) for name, found in ahead
    ]
    return " ".join([f"GLUE-5 over minutes. {'; '.join(scores)}.", *([f"Lead. {'; '.join(lead)}."] if lead else [])])
