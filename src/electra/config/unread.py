"""Settings that a run does not read: which keys change nothing beside which others, as a table.

It covers `objective`, `generator` and `masking`, whose keys depend on each other most, the rows, and what changes over
a run. A key that has to be 0 where nothing reads it is not in the table, as `validate` refuses its other values, nor is
one that only some machines read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from electra.config.load import diff, load
from electra.config.schema import Config
from electra.progress import WARNING, say

_OF_WEIGHTS = ("width", "depth", "tying", "temperature_share", "dropout_scale", "lr_scale", "clip")
_DETECT = ("rtd", "rtd-15", "electric")


class Rule(NamedTuple):
    """Keys that change nothing where `applies` holds."""

    keys: tuple[str, ...]
    applies: Callable[[Config], bool]
    reason: str
    """With `{objective.name}` and the like in place of values."""


def _draws(config: Config) -> bool:
    """Whether replacements come from a generator without weights."""
    return not _alone(config) and config.generator.kind in ("unigram", "uniform")


def _alone(config: Config) -> bool:
    """Whether there is one network and no generator."""
    return config.objective.name == "mlm"


def _no_token_head(config: Config) -> bool:
    """Whether nothing starts at token frequencies: no head predicts tokens, and no base rate is reckoned from them."""
    objective = config.objective
    detects = objective.name in _DETECT and not objective.correction_weight and not objective.base_rate_start
    return detects and _draws(config)


RULES = (
    Rule(
        tuple(f"generator.{name}" for name in ("kind", *_OF_WEIGHTS, "temperature", "disallow_correct")),
        _alone,
        "objective.name={objective.name} has no generator",
    ),
    Rule(
        (*(f"generator.{name}" for name in _OF_WEIGHTS), "objective.mlm_weight"),
        _draws,
        "generator.kind={generator.kind} has no weights to train",
    ),
    Rule(
        ("generator.temperature",),
        lambda config: not _alone(config) and config.generator.kind == "uniform",
        "generator.kind={generator.kind} draws any token alike",
    ),
    Rule(
        ("generator.temperature_share",),
        lambda config: not config.generator.temperature_start,
        "generator.temperature_start=0 means one temperature throughout",
    ),
    Rule(
        ("generator.dropout_scale",),
        lambda config: config.generator.tying == "all",
        "generator.tying={generator.tying} gives the generator no layers of its own",
    ),
    Rule(
        ("generator.dropout_scale",),
        lambda config: not (config.model.dropout or config.model.attention_dropout),
        "model.dropout and model.attention_dropout are 0",
    ),
    Rule(
        ("objective.rtd_weight",),
        lambda config: config.objective.name not in _DETECT,
        "objective.name={objective.name} detects nothing",
    ),
    Rule(
        ("objective.base_rate_start",),
        lambda config: config.objective.name in ("mlm", "replace-mlm"),
        "objective.name={objective.name} does not tell replaced tokens from others",
    ),
    Rule(("objective.unigram_start",), _no_token_head, "generator.kind={generator.kind} leaves no head for tokens"),
    Rule(
        ("objective.contrastive_share",),
        lambda config: not config.objective.contrastive_weight,
        "objective.contrastive_weight=0 leaves no sequence alone",
    ),
    Rule(
        ("masking.masked_share",),
        _alone,
        "objective.name={objective.name} reads 80 % [MASK], 10 % random and 10 % original tokens",
    ),
    Rule(
        ("masking.masked_share",),
        lambda config: not _alone(config) and config.generator.kind != "transformer",
        "generator.kind={generator.kind} does not read [MASK]",
    ),
    Rule(
        ("data.single_segment", "data.short", "data.short_length"),
        lambda config: config.data.layout == "packed",
        "data.layout={data.layout} fills every row, whatever its segments",
    ),
    Rule(
        ("data.short_length",),
        lambda config: config.data.layout == "paper-official",
        "data.layout={data.layout} aims at any length up to data.length",
    ),
    Rule(
        ("data.short_length",),
        lambda config: config.data.layout == "sentences" and not config.data.short,
        "data.short=0 means that no sequence aims at a shorter length",
    ),
    Rule(
        ("data.length_share",),
        lambda config: config.data.length_start in (0, config.data.length),
        "data.length_start={data.length_start} means one length throughout",
    ),
    Rule(("data.copies_share",), lambda config: not config.data.copies, "data.copies=0 means that there are none"),
    Rule(
        ("train.batch_share",),
        lambda config: len(config.train.batch_sizes) == 1,
        "train.batch_start={train.batch_start} means one batch size throughout",
    ),
    Rule(
        ("train.generator_steps", "train.start_from_generator"),
        lambda config: config.train.algorithm != "two-stage",
        "train.algorithm={train.algorithm} has one stage",
    ),
    Rule(
        ("model.dropout_share",),
        lambda config: not (config.model.dropout or config.model.attention_dropout),
        "model.dropout and model.attention_dropout are 0",
    ),
)


def unread(config: Config) -> dict[str, str]:
    """The keys that change nothing in a run with this config, each with the reason."""
    values = {name: getattr(config, name) for name in ("objective", "generator", "data", "train")}
    found: dict[str, str] = {}
    for rule in RULES:
        if rule.applies(config):
            found = {**dict.fromkeys(rule.keys, rule.reason.format(**values)), **found}
    return found


def unread_settings(config: Config) -> list[str]:
    """A line for each reason why settings that differ from their preset's change nothing."""
    changed = {key for key, _, _ in diff(load(config.preset), config)}
    by_reason: dict[str, list[str]] = {}
    for key, reason in unread(config).items():
        if key in changed:
            by_reason.setdefault(reason, []).append(key)
    return [
        f"{', '.join(keys)} {'is' if len(keys) == 1 else 'are'} not read: {reason}; leave"
        f" {'it' if len(keys) == 1 else 'them'} out"
        for reason, keys in by_reason.items()
    ]


def warn_of_unread(config: Config) -> None:
    """Say which settings change nothing."""
    for line in unread_settings(config):
        say(f"{WARNING} {line}")
