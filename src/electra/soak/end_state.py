"""What a folder holds, to be compared byte for byte with its twin's; and how far the work in it has come."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from electra import manifest
from electra.checkpoint import store
from electra.errors import ElectraError
from electra.jsontext import parse_json

DONE = 1 << 62  # the progress of what is finished
_CLOCK = ("time_s", "elapsed_s", "seconds", "metrics", "git")  # `metrics` is the sum of lines that hold times


def end_state(folder: Path) -> dict[str, str]:
    """The sha256 of every file by its name; JSON without what depends on the clock and the memory.

    A manifest counts by the names that it lists, and must fit the files.
    """
    found = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name == manifest.FILE:
            sums = manifest.read_manifest(path.parent)
            assert sums is not None
            sums.verify()
            found[name] = f"lists {sorted(sums.files)}"
        elif path.name != "time.json":
            found[name] = hashlib.sha256(_timeless(path)).hexdigest()
    return found


def _timeless(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return data
    texts = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
    return json.dumps([_without_clock(parse_json(text, where=path)) for text in texts]).encode()


def _without_clock(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_clock(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_clock(part)
        for key, part in value.items()
        if not (key in _CLOCK and not isinstance(part, list)) and not key.startswith("perf/")
    }


def differences(folder: Path, twin: dict[str, str]) -> list[str]:
    """The names of files that are not the twin's, missing or too many."""
    try:
        here = end_state(folder)
    except (ElectraError, OSError, ValueError) as problem:
        return [str(problem)]
    return sorted(name for name in here.keys() | twin.keys() if here.get(name) != twin.get(name))


def progress_in(folder: Path) -> dict[str, int]:
    """How far each part of the work in a folder has come; `ElectraError` for a part that looks whole and is not."""
    found: dict[str, int] = {}
    if (folder / "data.json").is_file():
        found["data"] = DONE
    found |= {f"unit {path.name}": 1 for path in (folder / ".work" / "units").glob("*.unit")}
    for place in folder.rglob(store.FOLDER):
        if any(part.startswith(".tmp-") for part in place.relative_to(folder).parts):
            continue  # half removed, and no longer under its name
        for one in store.steps(place.parent):
            store.verify(one)
        if newest := store.steps(place.parent)[-1:]:
            run = place.parent
            unfinished = run.parent.name == "unfinished"
            key = f"{run.parent.parent.name} {run.name}" if unfinished else "run"
            found[key] = store.step_of(newest[0])
    for path in folder.rglob("seed-*"):
        if path.parent.name != "unfinished" and (sums := manifest.read_manifest(path)) is not None:
            sums.verify()
            found[f"{path.parent.name} {path.name}"] = DONE
    return found


def lost(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """The parts that have gone back. Units are gone when the data is there."""
    if after.get("data"):
        return []
    return sorted(key for key, step in before.items() if after.get(key, 0) < step)
