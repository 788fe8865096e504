"""A run that goes on from its folder alone, and one that gets more steps or minutes than it began with.

The learning rate depends on a run's length. Steps that were trained before followed the schedule of the former length;
where that is the same as the new one up to here, the run is exactly the longer one. Otherwise it is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from getpass import getuser
from pathlib import Path
from typing import Any

from electra.checkpoint import store
from electra.checkpoint.folder import CONFIG, FACTS, LENGTHENS, MAY_CHANGE, read_config, read_facts
from electra.config.keys import flatten
from electra.config.load import adjust, diff
from electra.config.schema import Config, OptimConfig
from electra.config.unread import unread
from electra.errors import CheckpointError, ConfigError, DataError
from electra.progress import counted
from electra.records import read_record
from electra.train.loop import Position
from electra.train.schedule import learning_rate, takes_short

FOLLOW_THE_RUN = (
    "generator.temperature_start",
    "generator.unigram_share",
    "masking.rate_start",
    "model.dropout_share",
    "data.copies_share",
)
"""Keys of values that change with the share of the run that is done."""


def config_to_resume(run: Path, overrides: Iterable[str]) -> Config:
    """The config of a run with `key=value` changes; refused where a run that has begun cannot change a key so."""
    if not all((run / name).is_file() for name in (CONFIG, FACTS)):
        raise CheckpointError(run, "holds no run to resume", fix="give the --out of `electra pretrain`")
    begun = read_config(run)
    config = adjust(begun, overrides=overrides, begun=True)
    for key, old, new in diff(begun, config):
        if key not in (*MAY_CHANGE, *LENGTHENS):
            listed = ", ".join((*LENGTHENS, *MAY_CHANGE))
            raise ConfigError(key, f"is {old} in this run", fix=f"a run that has begun may change: {listed}")
        if key in LENGTHENS and (new < old or not old):
            raise ConfigError(key, f"{new:g} is no lengthening of this run's {old:g}", fix="use another --out")
    at_first = {"data.length_start": "short sequences", "train.batch_start": "small batches"}
    if lengthens(begun, config) and (asked := [key for key in at_first if flatten(config)[key]]):
        reason = f"the {at_first[asked[0]]} of a run that has begun cannot become more"
        raise ConfigError(asked[0], reason, fix="use another --out")
    if config.train.algorithm == "two-stage":  # the first stage stays as long as it began
        first = begun.train.stage_steps[0]
        config = replace(config, train=replace(config.train, generator_steps=first))
    return config


def data_of(run: Path) -> Path:
    """The data folder of a run, as run.json says where it lies beside the run."""
    noted = read_facts(run / FACTS).get("data_folder")
    if not noted:
        raise DataError(run / FACTS, "does not say where the data is", fix="give it with --data")
    folder = run / noted
    if not folder.is_dir():
        raise DataError(folder, "is not there any more", fix="say with --data where it is now")
    return Path(os.path.normpath(folder))


def noted_folder(out: Path, data: Path) -> str | None:
    """Where data lies, as run.json may say it: relative to the run, so that both may move; None where that would name
    the person."""
    relative = os.path.relpath(data.resolve(), out.resolve())
    try:
        person = {getuser(), Path.home().name}
    except (KeyError, OSError, RuntimeError):  # a user without a name or a home
        person = set()
    return None if person & set(Path(relative).parts) else relative


def lengthenings(out: Path, before: Config, config: Config) -> list[dict[str, Any]]:
    """What run.json notes of a run that gets longer: at which step, which key, from what to what."""
    newest = next(reversed(store.steps(out)), None)
    step = 0 if newest is None else store.step_of(newest)
    changed = [row for row in diff(before, config) if row[0] in LENGTHENS]
    return [{"step": step, "key": key, "before": old, "after": new} for key, old, new in changed]


def position_of(state: dict[str, Any], config: Config, facts: dict[str, Any], *, where: Path) -> Position:
    """The position that a checkpoint's `state` holds, with the end that the run has now."""
    # An older checkpoint has no length; what its own clock says is at most the last step away from it.
    known = read_record(Position, {"length": 0} | state, whole=True, where=where, error=CheckpointError)
    data, at_s = config.data, known.elapsed_s
    if not known.length and takes_short(known.step - 1, data=data, train=config.train, elapsed_s=at_s):
        known = replace(known, length=data.length_start)
    return with_goal(known, config, facts)


def with_goal(position: Position, config: Config, facts: dict[str, Any]) -> Position:
    """A checkpoint's position with the end that the run has now: it may have been lengthened since."""
    train = config.train
    if not train.max_minutes:
        return replace(position, total_steps=train.steps)
    total = position.total_steps
    for one in facts.get("lengthened", ()):
        if total is not None and one["key"] == "train.max_minutes" and one["step"] == position.step:
            total = round(total * one["after"] / one["before"])  # a first estimate, which measured speed corrects
    return replace(position, total_steps=total)


def explain(position: Position, before: Config, config: Config) -> str:
    """What stays exact when a run at a position goes on with another length, in one line; nothing where it does not."""
    step, new = position.step, config.train
    if not lengthens(before, config):
        return ""
    if before.train.max_minutes != new.max_minutes:
        return (
            f"lengthened at step {step:,} from {before.train.max_minutes:g} to {counted(new.max_minutes, 'minute')}:"
            " the steps so far followed the schedule of the shorter run"
        )
    first = new.stage_steps[0] if len(new.stage_steps) > 1 else 0
    old_total, total, done = before.train.steps - first, new.steps - first, max(0, step - first)
    lengths = f"lengthened at step {step:,} from {before.train.steps:,} to {new.steps:,} steps"
    differs = first_difference(config.optim, old_total, total, until=done)
    values, usual, idle = flatten(config), flatten(Config()), unread(config)
    if follows := [key for key in FOLLOW_THE_RUN if values[key] != usual[key] and key not in idle]:
        return (
            f"{lengths}: not those of a run of {new.steps:,} steps from the start, as {follows[0]} follows the length"
        )
    if differs is None:
        return f"{lengths}: exact, the steps so far are those of a run of {new.steps:,} steps from the start"
    old, now = (learning_rate(done, optim=config.optim, total=end) for end in (old_total, total))
    return (
        f"{lengths}: not those of a run of {new.steps:,} steps from the start, as the learning rate followed the former"
        f" schedule from step {first + differs:,} on; it goes on with {now:.3g} where it had {old:.3g}"
    )


def lengthens(before: Config, config: Config) -> bool:
    """Whether a config makes a run longer than another did."""
    return (before.train.steps, before.train.max_minutes) != (config.train.steps, config.train.max_minutes)


def first_difference(optim: OptimConfig, before: int, after: int, *, until: int) -> int | None:
    """The first step below `until` whose learning rate differs between runs of two lengths."""
    steps = range(until)
    rates = ((learning_rate(s, optim=optim, total=before), learning_rate(s, optim=optim, total=after)) for s in steps)
    return next((step for step, (old, new) in enumerate(rates) if old != new), None)
