"""Runs that other experiments made already, taken over with their scores where the settings are the same."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from electra.checkpoint.folder import CONFIG, FACTS, MAY_CHANGE, read_config
from electra.checkpoint.store import checkpoint_path
from electra.config.load import diff, to_toml
from electra.errors import DataError
from electra.fsio import commit_dir, read_object
from electra.manifest import commit_files
from electra.progress import say
from electra.records import read_record
from electra.reproduce.outcome import RESULTS, read_outcome
from electra.reproduce.plan import Planned
from electra.reproduce.scorer import SCORES, Scorer
from electra.reproduce.watch import step_reached

RUNS, REQUEST = "runs", "experiment.json"
_SCORED_BY = ("scale", "tasks")
_NEAR = 3  # settings: a run with more other ones is no near miss


class Twin(NamedTuple):
    """A finished run of the same settings on the same data."""

    run: Path
    scored: bool
    """Whether its scores serve too."""

    @property
    def title(self) -> str:
        return f"{self.run.name} of {_experiment(self.run)}"


def find_twin(
    planned: Planned, *, ours: dict[str, Any], scorer: Scorer, folders: Sequence[Path]
) -> tuple[Twin | None, str]:
    """The run in `folders` that can stand in a configuration's place, and otherwise a line that says why none can.

    `ours` is what this experiment's experiment.json says. A run whose scores are there too comes before one that is
    only trained.
    """
    same = [run for folder in folders for run in _runs(folder) if _same(run, planned, ours=ours)]
    scored = [run for run in same if _scored_alike(_experiment(run), ours, scorer) and _scored(run, planned, scorer)]
    for run in scored or [run for run in same if _has_weights(run, planned)]:
        return Twin(run, bool(scored)), ""
    return None, f"{planned.name}: no run to take over{_nearest(planned, folders)}" if folders and not same else ""


def take_over(planned: Planned, *, out: Path, ours: dict[str, Any], scorer: Scorer, folders: Sequence[Path]) -> None:
    """Put the run that `find_twin` finds, with its scores, into the place of one not begun."""
    place = out / RUNS / planned.name
    if place.exists():
        return
    twin, line = find_twin(planned, ours=ours, scorer=scorer, folders=folders)
    if twin is None:
        if line:
            say(line)
        return
    with commit_dir(place) as aside:
        shutil.copytree(twin.run, aside, dirs_exist_ok=True, copy_function=_link)
        commit_files(aside, {CONFIG: to_toml(planned.config).encode()})
    say(f"{planned.name}: its run is {twin.title}")
    for there, here in _scores(twin.run, planned, scorer) if twin.scored else ():
        with commit_dir(here) as aside:
            shutil.copytree(there, aside, dirs_exist_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    experiment: str
    scale: str
    budget: str
    changes: list[str]
    overrides: list[str]
    tasks: list[str]
    data_sha256: str


def read_request(folder: Path) -> dict[str, Any]:
    """What an experiment's folder is for, as its experiment.json says."""
    value = read_object(folder / REQUEST)
    read_record(_Request, value, where=folder / REQUEST, fix="choose a new folder")
    return value


def _nearest(planned: Planned, folders: Sequence[Path]) -> str:
    """The run with the fewest other settings, and which those are."""
    runs = [(run, _changed(run, planned)) for folder in folders for run in _runs(folder)]
    near = [(run, keys) for run, keys in runs if 0 < len(keys) <= _NEAR]
    if not near:
        return ""
    run, keys = min(near, key=lambda one: len(one[1]))
    return f" ({run.name} of {_experiment(run)} has another {', '.join(keys)})"


def _experiment(run: Path) -> Path:
    return run.parent.parent


def _scores(run: Path, planned: Planned, scorer: Scorer) -> list[tuple[Path, Path]]:
    """Where the scores of a run's checkpoints are, and where they would be here."""
    places = [scorer.folder(planned, point) for point in planned.points]
    return [(_experiment(run) / SCORES / run.name / place.name, place) for place in places]


def _scored(run: Path, planned: Planned, scorer: Scorer) -> bool:
    return all(there.is_dir() for there, _ in _scores(run, planned, scorer))


def _runs(folder: Path) -> Iterator[Path]:
    if not (folder / REQUEST).is_file():
        raise DataError(folder, f"holds no experiment: no {REQUEST}", fix="--reuse a folder of electra reproduce")
    yield from sorted(path for path in (folder / RUNS).glob("*") if (path / FACTS).is_file())


def _same(run: Path, planned: Planned, *, ours: dict[str, Any]) -> bool:
    """Whether a run is finished, and is this one."""
    if read_request(_experiment(run))["data_sha256"] != ours["data_sha256"]:
        return False
    return not _changed(run, planned) and step_reached(run) >= planned.config.train.steps


def _changed(run: Path, planned: Planned) -> list[str]:
    """The settings in which a run differs, as far as they matter to the weights."""
    return [key for key, _, _ in diff(read_config(run), planned.config) if key not in MAY_CHANGE]


def _has_weights(run: Path, planned: Planned) -> bool:
    """Whether every checkpoint that is to be scored is there."""
    wanted = [point.step or planned.config.train.steps for point in planned.points]
    return all(checkpoint_path(run, step).is_dir() for step in wanted)


def _scored_alike(folder: Path, ours: dict[str, Any], scorer: Scorer) -> bool:
    theirs = read_request(folder)
    if not (folder / RESULTS).is_file() or _rows_of(theirs) != _rows_of(ours):
        return False
    return all(theirs[key] == ours[key] for key in _SCORED_BY) and read_outcome(folder).seeds == scorer.seeds


def _rows_of(request: dict[str, Any]) -> list[str]:
    """How many training rows its tasks have, where it is not the scale's number."""
    return [text for text in request["changes"] if text.startswith("--rows ")]


def _link(source: str, target: str) -> None:
    """Weights, which are never written to again, in a second place; a copy of all else, and between disks."""
    if source.endswith(".safetensors"):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
