"""The openly licensed texts that bundled models are trained on, with whom they come from and their licences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSource:
    """One text corpus and what its makers ask for."""

    title: str
    attribution: str
    licence: str


SOURCES = {
    "wikipedia": TextSource(
        title="English Wikipedia",
        attribution="by its contributors; a dump of 2015 or before, 25,658 articles",
        licence="CC BY-SA 3.0",
    ),
    "simplewiki": TextSource(
        title="Simple English Wikipedia",
        attribution="by its contributors, 94,879 articles",
        licence="CC BY-SA 3.0",
    ),
    "gutenberg": TextSource(
        title="Project Gutenberg",
        attribution="579 books",
        licence="public domain in the USA",
    ),
    "elife": TextSource(
        title="eLife",
        attribution="3,139 research articles by their authors, elifesciences.org",
        licence="CC BY 4.0 or CC0",
    ),
    "sotu": TextSource(
        title="State of the Union addresses",
        attribution="248 speeches of US presidents, 1790 to 2026",
        licence="public domain",
    ),
}
"""By the name in a corpus's file names: train-NAME-00.txt."""
