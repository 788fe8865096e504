"""What a report is about: folders of pre-training, of fine-tuning or GLUE, and of experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electra.errors import DataError
from electra.finetune.seed_folder import RESULTS
from electra.fsio import read_object
from electra.report.reading import Run, name_of, read_run
from electra.report.tuned import Tuned, read_tuned
from electra.reproduce.outcome import Outcome, read_outcome
from electra.train.metrics_file import FILE

ACCEPTED = "give a folder of electra pretrain, finetune, glue, reproduce or demo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """An experiment's folder."""

    name: str
    folder: Path
    outcome: Outcome


Subject = Run | Tuned | Tried


def read_subjects(folder: Path) -> list[Subject]:
    """What the folder holds: one thing, or a run with its scores; DataError where a report can show nothing of it."""
    found = _read_subject(folder)
    scored = sorted(folder.glob(f"scores/*/{RESULTS}")) if isinstance(found, Run) else []  # of electra speedrun
    return [found, *(replace(read_tuned(path.parent), name=f"{found.name} scores") for path in scored)]


def _read_subject(folder: Path) -> Subject:
    if not folder.is_dir():
        raise DataError(folder, "is not a folder" if folder.exists() else "no such folder", fix=ACCEPTED)
    if (folder / FILE).is_file():
        return read_run(folder)
    if (folder / "run" / FILE).is_file() and (folder / "tuned").is_dir():  # of electra demo
        return read_run(folder / "run")
    if not (folder / RESULTS).is_file():
        raise DataError(folder, f"has no {FILE} and no {RESULTS}", fix=ACCEPTED)
    if "experiment" in read_object(folder / RESULTS):
        return Tried(name=name_of(folder), folder=folder, outcome=read_outcome(folder))
    return read_tuned(folder)


def with_own_names(subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects under names of their own: with the parent's folder, then with a number, where names are alike."""
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        names = [f"{name_of(subject.folder.resolve().parent)}/{subject.name}" for subject in subjects]
    numbered = [
        f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)
    ]
    return [replace(subject, name=name) for subject, name in zip(subjects, numbered, strict=True)]
