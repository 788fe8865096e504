"""The report: folders of runs as one static page that opens offline and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.config.keys import flatten
from electra.errors import ConfigError
from electra.fsio import write_atomic
from electra.report.answers import answer_to
from electra.report.reading import Run
from electra.report.rendering import render_page, require_drawing
from electra.report.subjects import Subject, Tried, read_subjects, with_own_names
from electra.report.tuned import Tuned

FILE = "report.html"
MOST_FOLDERS = 12
"""On one page: more curves cannot be distinguished."""


def write_report(*folders: Path, out: Path | None = None) -> Path:
    """Write the page of one or more folders and return where it is.

    By default `report.html` in the folder, or in the current one where there are several.
    """
    return write_page(read_folders(folders), out or default_page(folders))


def default_page(folders: Sequence[Path]) -> Path:
    """Where the page of these folders goes."""
    return folders[0] / FILE if len(folders) == 1 else Path(FILE)


def write_page(subjects: Sequence[Subject], out: Path) -> Path:
    """Write the page of what was read and return where it is."""
    write_atomic(out, render(*subjects).encode())
    return out


def read_folders(folders: Sequence[Path]) -> list[Subject]:
    """What the folders hold, under names that differ."""
    if len(folders) > MOST_FOLDERS:
        raise ConfigError("RUN", f"{len(folders)} are too many for one page", fix=f"give at most {MOST_FOLDERS}")
    return with_own_names([subject for folder in folders for subject in read_subjects(folder)])


def render(*subjects: Subject) -> str:
    """The page as HTML text."""
    require_drawing("electra report")
    from electra.report.experiment_view import experiment_view
    from electra.report.run_view import runs_section
    from electra.report.tuned_view import glue_section, tuned_section

    runs = [one for one in subjects if isinstance(one, Run)]
    tuned = [one for one in subjects if isinstance(one, Tuned)]
    tried = [one for one in subjects if isinstance(one, Tried)]
    sections = {
        "pretraining": runs_section(runs) if runs else None,
        "finetuning": tuned_section(tuned) if tuned else None,
        "glue": glue_section(runs, tuned, tried),
        "experiments": [experiment_view(one, place) for place, one in enumerate(tried)],
        "differences": differences(runs, tuned),
    }
    count = len(tried) + sum(bool(part) for name, part in sections.items() if name != "experiments")
    return render_page("report.html", title=_title(subjects), answer=answer_to(subjects), sections=count, **sections)


def differences(runs: Sequence[Run], tuned: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Tables of the settings in which runs, or fine-tuned folders, differ."""
    groups = [
        ("pre-training", {run.name: flatten(run.config) for run in runs}),
        ("fine-tuning", {one.name: one.suite.results[0].config for one in tuned}),
    ]
    found = []
    for title, settings in groups:
        keys = dict.fromkeys(key for values in settings.values() for key in values)
        rows = [(key, [str(values.get(key, "")) for values in settings.values()]) for key in keys]
        if len(settings) > 1:
            rows = [(key, values) for key, values in rows if len(set(values)) > 1]
            found.append({"title": title, "names": list(settings), "rows": rows})
    return found


def _title(subjects: Sequence[Subject]) -> str:
    return " · ".join(subject.name for subject in subjects)
