"""Presets, TOML files and `key=value` overrides become a Config, strictly: nothing unknown, nothing guessed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from electra.config.finetune import FinetuneConfig
from electra.config.keys import FORMER_VALUES, checked, flatten, is_section, parse, require_known, toml_value
from electra.config.schema import Config
from electra.config.validate import validate
from electra.errors import ConfigError, suggest
from electra.fsio import read_bytes

Root = TypeVar("Root", Config, FinetuneConfig)

DEFAULT_PRESET = "small"
MAX_TOML_BYTES = 1 << 18
MAX_DOTS = 200
"""In a line: the reader's time grows with the cube of a key's parts."""
SIZES = ("tiny", "small", "base", "large")


def load(preset: str | None = None, *, file: Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """The Config of a preset, changed by a TOML file, changed by `key=value` overrides; checked as a whole."""
    layers = [("the file", read_toml(file))] if file is not None else []
    layers.append(("an override", parse_overrides(overrides)))
    chosen = preset
    for source, flat in layers:
        named = flat.pop("preset", chosen)
        if chosen is not None and named != chosen:
            raise ConfigError("preset", f"{source} says {named!r}, not {chosen!r}", fix="name one preset only")
        chosen = named
    values = _preset_values(chosen or DEFAULT_PRESET)
    for _, flat in layers:
        values.update(_exact_steps(flat))
    config: Config = _build(Config, values, "")
    validate(config)
    return config


def adjust(config: Root, *, file: Path | None = None, overrides: Iterable[str] = (), begun: bool = False) -> Root:
    """`config` changed by a TOML file, changed by `key=value` overrides; checked as a whole.

    Where it is that of a run that has `begun`, its own `optim.warmup_steps`, given again, leave the warm-up as it is.
    """
    own = flatten(config) if begun else {}
    return change(config, given_keys(type(config), file=file, overrides=overrides, own=own))


def given_keys(
    root: Any, *, file: Path | None = None, overrides: Iterable[str] = (), own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The keys that a TOML file and `key=value` overrides set, with their values; `own` are those of a begun run."""
    layers = [read_toml(file, root)] if file is not None else []
    layers.append(parse_overrides(overrides, root))
    return {key: value for flat in layers for key, value in _exact_steps(flat, own).items()}


def change(config: Root, values: Mapping[str, Any]) -> Root:
    """`config` with other values of some keys; checked as a whole."""
    changed: Root = _build(type(config), {**flatten(config), **values}, "")
    validate(changed)
    return changed


def preset(name: str) -> Config:
    """The Config that a preset stands for."""
    return load(preset=name)


def preset_names() -> list[str]:
    """The presets that come with the package, smaller first, ELECTRA before BERT."""
    names = [entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml")]
    return sorted(names, key=lambda name: (name.startswith("bert"), [size not in name for size in SIZES], name))


def preset_title(name: str) -> str:
    """What a preset is for: the comment on its first line."""
    return _preset_text(name).splitlines()[0].removeprefix("# ")


def load_any(name: str, *, overrides: Iterable[str] = ()) -> Config:
    """The Config of a preset name, a TOML file or a run folder, changed by `key=value` overrides."""
    path = Path(name)
    if name in preset_names():
        return load(name, overrides=overrides)
    if path.is_dir():
        if not (path / "config.toml").is_file():
            raise ConfigError(name, "this folder has no config.toml", fix="give a run folder")
        return load(file=path / "config.toml", overrides=overrides)
    if path.is_file():
        return load(file=path, overrides=overrides)
    hint = suggest(name, preset_names()) or f"presets: {', '.join(preset_names())}"
    raise ConfigError(name, "no such preset, TOML file or run folder", fix=hint)


def to_toml(config: Config | FinetuneConfig) -> str:
    """The whole configuration as TOML that `load`, or `adjust` for fine-tuning, reads back to an equal one."""
    lines: list[str] = []
    section = ""
    for key, value in flatten(config).items():
        head, _, leaf = key.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{leaf} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def diff(a: Root, b: Root) -> list[tuple[str, Any, Any]]:
    """Every key whose value differs, with both values."""
    left, right = flatten(a), flatten(b)
    return [(key, left[key], right[key]) for key in left if left[key] != right[key]]


def read_toml(path: Path, root: Any = Config) -> dict[str, Any]:
    """The dotted keys of a TOML file, each known and of its type."""
    try:
        text = read_bytes(path, most=MAX_TOML_BYTES).decode()
    except OSError as error:
        raise ConfigError(str(path), error.strerror or "cannot be read", fix="give a TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8 text", fix="give a TOML file") from error
    return _read_text(text, str(path), root)


def parse_overrides(overrides: Iterable[str], root: Any = Config) -> dict[str, Any]:
    """`key=value` overrides as dotted keys with typed values; a key given twice is refused."""
    overrides = list(overrides)
    refuse_spaces(overrides)
    flat: dict[str, Any] = {}
    for text in overrides:
        key, equals, raw = text.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigError(text, "is not key=value", fix="for example seed=1")
        require_known(key, root)
        if key in flat:
            raise ConfigError(key, "is given twice", fix="give it once")
        flat[key] = parse(raw.strip(), key, root)
    return flat


def refuse_spaces(arguments: Sequence[str]) -> None:
    """ConfigError where a shell cut a setting at spaces around its equals sign: `epochs = 1`."""
    for before, text, after in zip(["", *arguments], arguments, [*arguments[1:], ""], strict=False):
        if text.startswith("=") and before:
            key, value = before, text[1:] or after
        elif text.endswith("=") and text != "=" and after and "=" not in after:
            key, value = text[:-1], after
        else:
            continue
        raise ConfigError(key, "has spaces around its =", fix=f"write {key}={value or 'VALUE'}")


def _read_text(text: str, source: str, root: Any = Config) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS and not line.lstrip().startswith("#"):
            raise ConfigError(source, f"is not valid TOML: line {number} has more than {MAX_DOTS} dots")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError also for a number with thousands of digits
        raise ConfigError(source, f"is not valid TOML: {error}") from error
    return {key: checked(_renamed(key, value), key, root) for key, value in _leaves(document, "", root)}


def _renamed(key: str, value: Any) -> Any:
    return FORMER_VALUES.get((key, value), value) if isinstance(value, str) else value


def _leaves(table: dict[str, Any], prefix: str, root: Any) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if is_section(key, root) and isinstance(value, dict):
            yield from _leaves(value, f"{key}.", root)
        else:
            require_known(key, root)
            yield key, value


@cache
def _fields(cls: Any) -> dict[str, Any]:
    """The fields of a section with their types; evaluating the annotations takes most of a load's time."""
    return get_type_hints(cls)


def _build(cls: Any, flat: dict[str, Any], prefix: str) -> Any:
    fields: dict[str, Any] = {}
    for name, kind in _fields(cls).items():
        key = prefix + name
        if is_dataclass(kind):
            fields[name] = _build(kind, flat, f"{key}.")
        elif key in flat:
            fields[name] = flat[key]
    return cls(**fields)


_WHERE_SET = {
    "optim.warmup_steps": ("optim.warmup_share", 1.0),
    "evaluate.every": ("evaluate.seconds", 0.0),
    "checkpoint.every": ("checkpoint.seconds", 0.0),
}


def _exact_steps(flat: dict[str, Any], own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Steps that someone asked for are taken as they are; so are those of runs before there was another limit."""
    asked, warmup = set(flat), "optim.warmup_steps"
    if own and flat.get(warmup) == own.get(warmup):
        asked.discard(warmup)  # a run may have begun with a share that limits them, and keeps it
    return {**dict(limit for key, limit in _WHERE_SET.items() if key in asked), **flat}


def _folder() -> Any:
    return resources.files("electra.config") / "presets"


def _preset_values(name: str) -> dict[str, Any]:
    return {**_read_preset(name), "preset": name}


@cache
def _read_preset(name: str) -> dict[str, Any]:
    return _read_text(_preset_text(name), f"preset {name}")


def _preset_text(name: str) -> str:
    if name not in preset_names():
        hint = suggest(name, preset_names())
        listed = f"one of: {', '.join(preset_names())}"
        raise ConfigError("preset", f"{name!r} does not exist", fix=f"{listed}; {hint}" if hint else listed)
    text: str = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    return text
