"""Which records are of one run, which of one setting, and in what the recipes of two differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from electra.config.keys import flatten, toml_value
from electra.config.load import load
from electra.config.schema import Config
from electra.errors import ConfigError, DataError
from electra.progress import counted
from electra.speedrun.entry import load_entry
from electra.speedrun.record import Record

ENCODER = ("layers", "width", "heads", "ffn", "embedding", "positions", "rotary")
"""Keys of `model` that make two encoders different networks."""
_NO_RECIPE = ("preset", "seed", "train.steps", "train.max_minutes", "checkpoint.", "evaluate.")
"""What names a recipe, how long and with which seed it trains, and what is saved and measured meanwhile."""
_OBJECTIVE = ("objective.", "generator.")
_SAME_COST = 0.01
"""FLOPs per token of one setting differ by less: how many tokens are masked varies a little with the sentences."""


def detects(record: Record) -> bool:
    """Whether a run learned to detect replaced tokens; otherwise it is MLM alone."""
    return record.held_out.get("rtd_loss") is not None


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each record once: one that was written twice, or under another commit, is one run."""
    kept: list[Record] = []
    for record in records:
        place = next((at for at, one in enumerate(kept) if one.is_copy(record)), len(kept))
        kept[place : place + 1] = [max([*kept[place : place + 1], record], key=lambda one: len(one.settings))]
    return kept


def by_setting(records: Sequence[Record]) -> list[list[Record]]:
    """Records of one title, those of the same settings together; two different ones of one run are refused."""
    groups: list[list[Record]] = []
    for record in records:
        group = next((one for one in groups if all(_one_setting(record, other) for other in one)), None)
        if group is None:
            groups.append([record])
            continue
        for other in group:
            if (record.minutes, record.seed) == (other.minutes, other.seed):
                run = f"{record.title}, {counted(record.minutes, 'minute')}, seed {record.seed}"
                each = " and ".join(f"GLUE-5 {one.scores.glue5:.2f} of commit {one.commit}" for one in (other, record))
                raise DataError(
                    "records", f"one run has two different records: {run}: {each}", fix="take one of the two out"
                )
        group.append(record)
    return groups


def same_encoder(a: Record, b: Record) -> bool:
    """Whether what is kept of two runs, the encoder, is the same network."""
    differing = {key for key, _, _ in _differences(_resolved(a), _resolved(b))}
    return not differing & {f"model.{key}" for key in ENCODER}


def same_changes(a: Record, b: Record) -> bool:
    """Whether two runs change their entries or presets alike, apart from what only one of the objectives has."""
    return _changes(a) == _changes(b)


def recipe_differences(a: Record, b: Record) -> list[str]:
    """`key value, value` of what differs in two recipes, apart from what only one of the objectives has."""
    found = _differences(_resolved(a), _resolved(b))
    return [f"{key} {left}, {right}" for key, left, right in found if not key.startswith(_OBJECTIVE)]


def _one_setting(a: Record, b: Record) -> bool:
    """Whether two records of one title have the same settings; where these are not known, the same size and cost."""
    if detects(a) != detects(b):
        return False
    if a.settings and b.settings:
        return not _differences(a.settings, b.settings)
    pairs = ((a.flops_real, b.flops_real), (a.flops_paper, b.flops_paper))
    return (a.preset, a.parameters) == (b.preset, b.parameters) and all(
        math.isclose(left * b.tokens_padded, right * a.tokens_padded, rel_tol=_SAME_COST) for left, right in pairs
    )


def _resolved(record: Record) -> Mapping[str, str]:
    """A record's settings; of one without, those that its entry and changes have today, if they still load."""
    if record.settings:
        return record.settings
    try:
        if record.entry is not None:
            return settings_of(load_entry(record.entry, overrides=record.changes))
        return settings_of(load(record.preset, overrides=record.changes))
    except ConfigError:  # an entry or a key of another version
        return {}


def settings_of(config: Config) -> dict[str, str]:
    """Every key with its value, as a record holds them."""
    return {key: toml_value(value) for key, value in flatten(config).items()}


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Keys of both that differ; the vocabulary is that of the data, which are compared as such."""
    shared = (key for key in a if key in b and key != "model.vocab_size" and not key.startswith(_NO_RECIPE))
    return [(key, a[key], b[key]) for key in shared if a[key] != b[key]]


def _changes(record: Record) -> set[str]:
    return {one for one in record.changes if not one.startswith((*_NO_RECIPE, *_OBJECTIVE))}
