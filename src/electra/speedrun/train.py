"""The first half of a speedrun: a run folder after so many minutes of wall-clock, whatever was trained in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from electra.checkpoint.folder import FACTS, storage
from electra.config.load import diff, load
from electra.config.schema import Config
from electra.errors import ConfigError, DataError
from electra.fsio import read_json, write_json
from electra.pretrain import pretrain
from electra.records import read_record
from electra.speedrun.entry import DEFAULT_ENTRY, load_entry

FILE, FORMAT = "speedrun.json", 1
ANY_STEPS = 10**9  # time ends the run, not a number of steps
DECIDED = ("train.steps", "train.max_minutes")
"""Keys that the minutes decide."""
_GIVEN = (*DECIDED, "preset", "model.vocab_size")  # no choice of the one who runs it


def speedrun(
    *,
    data: Path,
    out: Path,
    minutes: float,
    entry: str | None = None,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    text: str = "",
    began: float | None = None,
) -> Path:
    """Train for so many minutes from `began` on, summed over resumes; the run folder.

    An entry or a preset is changed by a TOML file (a preset only) and by `key=value` overrides. `text` says in words
    what the data is, for the record.
    """
    if minutes <= 0:
        raise ConfigError("--minutes", f"{minutes:g} is not above 0", fix="such as 10")
    if entry is not None and (preset is not None or file is not None):
        raise ConfigError("--entry", "is a preset with its changes", fix="leave out --preset and --config")
    for key in (text.partition("=")[0].strip() for text in overrides):
        if key in DECIDED:
            raise ConfigError(key, "the minutes decide it", fix=f"leave it out: --minutes {minutes:g}")
    if preset is None and file is None:
        entry = entry or DEFAULT_ENTRY
    budget = [f"train.max_minutes={minutes!r}", f"train.steps={ANY_STEPS}"]
    if entry is not None:
        config, base = load_entry(entry, overrides=[*overrides, *budget]), load_entry(entry)
    else:
        config = load(preset, file=file, overrides=[*overrides, *budget])
        base = load(config.preset)
    with storage(out):
        _claim(out, Claim(entry, changes(base, config), text))
    return pretrain(config, data=data, out=out, began=began)


def changes(base: Config, config: Config) -> list[str]:
    """What someone chose to differ from an entry or a preset, as `key=value`."""
    return [f"{key}={_text(value)}" for key, _, value in diff(base, config) if key not in _GIVEN]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a folder is for."""

    entry: str | None
    """None: a preset."""
    changes: list[str]
    """`key=value` that differ from the entry or preset."""
    text: str = ""
    """What it is trained on, in words."""


def read_claim(run: Path) -> Claim:
    """What a speedrun's folder is for; DataError where it is none."""
    fix = "give the --out of `electra speedrun train`"
    if not (run / FILE).is_file():
        raise DataError(run, f"has no readable {FILE}", fix=fix)
    return read_record(Claim, read_json(run / FILE), where=run / FILE, fix=fix)


def _claim(out: Path, claim: Claim) -> None:
    """Note what the folder is for, or check that it is for this; what its data is may be named later."""
    if (out / FACTS).is_file():
        if not (out / FILE).is_file():
            raise ConfigError("--out", f"{out} holds a run that is no speedrun", fix="choose a new folder")
        before = read_claim(out)
        if before.entry != claim.entry:
            raise ConfigError("--out", f"{out} holds another entry: {before.entry}", fix="choose a new folder")
        claim = replace(before, text=claim.text or before.text)
        if claim == before:
            return
    write_json(out / FILE, {"format": FORMAT, **asdict(claim)})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
