"""An inspection as one static page that opens offline and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from electra.fsio import write_atomic
from electra.inspection import Inspection
from electra.inspection.advice import advice
from electra.inspection.facts import Lengths
from electra.inspection.terminal import (
    classes,
    extent_words,
    languages_words,
    left_out_words,
    split_words,
    vocabulary_words,
)
from electra.report.plots import bar_chart
from electra.report.rendering import render_page, require_drawing

MOST_BARS = 8
LEAST_BAR = 0.001
MOST_ROWS = 12


def write_inspection(found: Inspection, out: Path) -> Path:
    """Write the page and return where it is."""
    write_atomic(out, render(found).encode())
    return out


def render(found: Inspection) -> str:
    """The page as HTML text."""
    require_drawing("--html")
    from markupsafe import Markup

    charts = [
        (Markup(bars(name, title, shares)), caption)
        for name, title, shares, caption in (
            ("documents", "Documents, by tokens", _classes(found.document_lengths), _middle(found.document_lengths)),
            ("sentences", "Sentences, by tokens", _classes(found.sentence_lengths), _middle(found.sentence_lengths)),
        )
    ]
    return render_page(
        "inspection.html",
        found=found,
        title=", ".join(found.names),
        extent=extent_words(found.extent),
        left_out=left_out_words(found),
        languages=languages_words(found),
        shares=[Markup(bars(name, title, list(some.items()))) for name, title, some in _shares(found) if some],
        charts=charts,
        vocabulary=vocabulary_words(found),
        training=split_words(found.training),
        held_out=split_words(found.held_out),
        advice=advice(found),
        pieces=found.pieces[:MOST_ROWS],
    )


def bars(name: str, title: str, shares: Sequence[tuple[str, float]]) -> str:
    """A chart of shares as SVG; the axis ends a little beyond the largest."""
    drawn = [(label.replace("_", " "), share, "one") for label, share in shares]
    return bar_chart(name, title=title, bars=drawn, baseline=None, top=1.25 * max(share for _, share in shares))


def _shares(found: Inspection) -> list[tuple[str, str, dict[str, float]]]:
    languages = _most(found.languages) | ({"not clear": found.unsure} if found.unsure else {})
    return [("scripts", "Scripts, by letters", _most(found.scripts)), ("languages", "Languages, a guess", languages)]


def _most(shares: dict[str, float]) -> dict[str, float]:
    """The first entries and the sum of the others."""
    large = {name: share for name, share in list(shares.items())[:MOST_BARS] if share >= LEAST_BAR}
    rest = sum(share for name, share in shares.items() if name not in large)
    return large | ({"others": rest} if rest else {})


def _classes(lengths: Lengths) -> list[tuple[str, float]]:
    return list(zip(classes(), lengths.shares, strict=True))


def _middle(lengths: Lengths) -> str:
    return f"Half have at most {lengths.median:,} tokens; the longest has {lengths.longest:,}."
