"""Every key of the schema: its type, its help, the values it takes, and what a wrong one was meant to be."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from electra.config.schema import Config
from electra.errors import ConfigError, suggest

ALIASES = {
    "learning_rate": "optim.lr",
    "num_warmup_steps": "optim.warmup_steps",
    "warmup": "optim.warmup_steps",
    "warmup_proportion": "optim.warmup_share",
    "warmup_ratio": "optim.warmup_share",
    "num_train_steps": "train.steps",
    "max_steps": "train.steps",
    "batch": "train.batch_size",
    "train_batch_size": "train.batch_size",
    "max_seq_length": "data.length",
    "max_length": "data.length",
    "mask_prob": "masking.rate",
    "disc_weight": "objective.rtd_weight",
    "gen_weight": "objective.mlm_weight",
    "generator_hidden_size": "generator.width",
    "generator_layers": "generator.depth",
    "hidden_size": "model.width",
    "num_hidden_layers": "model.layers",
    "num_attention_heads": "model.heads",
    "intermediate_size": "model.ffn",
    "embedding_size": "model.embedding",
    "max_position_embeddings": "model.positions",
}
"""What other implementations call our keys: only ever suggested, never accepted."""
FINETUNE_ALIASES = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "train_batch_size": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "batch": "batch_size",
    "max_seq_length": "length",
    "max_length": "length",
    "layerwise_lr_decay": "layer_decay",
    "weight_decay_rate": "weight_decay",
    "warmup_proportion": "warmup",
    "warmup_ratio": "warmup",
    "max_grad_norm": "clip",
    "max_train_samples": "max_train_rows",
    "max_query_length": "max_query",
    "max_answer_length": "max_answer",
    "beam_size": "beam",
    "n_best_size": "n_best",
    "qa_na_threshold": "null_threshold",
    "null_score_diff_threshold": "null_threshold",
}
"""The same for the keys of fine-tuning."""

FORMER_VALUES = {("data.layout", "paper"): "paper-official"}
"""What a value was called when older files were written; a file with the former name means the same."""

LARGEST_NUMBER = 2**63 - 1


class Option(NamedTuple):
    """What `electra config show --help-keys` prints about a key."""

    key: str
    type: str
    default: Any
    help: str


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value, in the order of the schema."""
    flat: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        flat |= flatten(value, f"{prefix}{item.name}.") if is_dataclass(value) else {prefix + item.name: value}
    return flat


@cache
def key_types(root: Any = Config) -> dict[str, Any]:
    """Dotted key to annotated type, in the order of the schema that `root` is."""
    return dict(_walk_types(root, ""))


def describe(root: Any = Config) -> list[Option]:
    """Every key with its type, its default and its help text, in the order of the schema."""
    help_lines = dict(_docstrings(root, ""))
    defaults = flatten(root())
    return [Option(key, type_name(kind), defaults[key], help_lines[key]) for key, kind in key_types(root).items()]


def type_name(kind: Any) -> str:
    """`int`, or the choices of a Literal: `auto|cpu|cuda`."""
    return "|".join(get_args(kind)) if get_origin(kind) is Literal else str(kind.__name__)


def require_known(key: str, root: Any = Config) -> None:
    known = key_types(root)
    if key in known:
        return
    if is_section(key, root):
        example = next(name for name in known if name.startswith(f"{key}."))
        raise ConfigError(key, "is a section, not a value", fix=f"set one of its keys, such as {example}")
    listed = "electra config show --help-keys lists them" if root is Config else f"one of: {', '.join(known)}"
    raise ConfigError(key, "no such key", fix=hint_for(key, root) or listed)


def is_section(key: str, root: Any = Config) -> bool:
    return key in _sections(root)


@cache
def _sections(root: Any) -> frozenset[str]:
    """`a` and `a.b` of a key `a.b.c`."""
    parts = [key.split(".") for key in key_types(root)]
    return frozenset(".".join(part[:depth]) for part in parts for depth in range(1, len(part)))


def hint_for(key: str, root: Any = Config) -> str:
    """`did you mean 'x'?` for an unknown key, or an empty string."""
    known = key_types(root)
    leaf = key.rpartition(".")[2]
    for meant in (ALIASES.get(leaf), FINETUNE_ALIASES.get(leaf)):
        if meant in known:
            return f"did you mean '{meant}'?"
    same = [name for name in known if name.rpartition(".")[2] == leaf]
    if same:
        return "did you mean " + " or ".join(f"'{name}'" for name in same) + "?"
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    sections = {name.partition(".")[0] for name in known}
    close = suggest(key, [*known, *sections]) or suggest(leaf, by_leaf)
    return re.sub(r"'(.*)'", lambda m: f"'{by_leaf.get(m[1], m[1])}'", close)


def checked(value: Any, key: str, root: Any = Config) -> Any:
    """A TOML value, refused where it is not of the key's type."""
    return of_type(value, key_types(root)[key], key)


def of_type(value: Any, kind: Any, key: str) -> Any:
    """The value, refused under the name `key` where it is not of this type; `bool | None` takes None too."""
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return None
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise _not_a_choice(value, key, get_args(kind))
        return value
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise ConfigError(key, "this number is too large", fix=_EXAMPLE.get(kind, ""))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        raise ConfigError(key, f"{_shown(value)} is not {_NOUN[kind]}", fix=_EXAMPLE[kind])
    if kind is float and not math.isfinite(value):
        raise ConfigError(key, f"{value} is not a finite number")
    return value


def parse(raw: str, key: str, root: Any = Config) -> Any:
    """The text of an override as a value of the key's type."""
    kind = key_types(root)[key]
    if get_origin(kind) is Literal or kind is str:
        return checked(raw, key, root)
    if kind is bool and raw in ("true", "false"):
        return raw == "true"
    readable = len(raw) <= 100
    if kind is int and readable and re.fullmatch(r"[+-]?\d+(_\d+)*", raw):
        return checked(int(raw), key, root)
    if kind is float and readable and re.fullmatch(r"[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?", raw):
        return checked(float(raw), key, root)
    raise ConfigError(key, f"{_shown(raw)} is not {_NOUN[kind]}", fix=_EXAMPLE[kind])


_NOUN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_EXAMPLE = {
    int: "write digits only, such as 2000 or 1_000_000",
    float: "such as 0.15 or 5e-4",
    bool: "write true or false",
    str: 'such as "small"',
}


def _not_a_choice(value: Any, key: str, choices: tuple[str, ...]) -> ConfigError:
    hint = suggest(value, choices) if isinstance(value, str) else ""
    listed = f"one of: {', '.join(choices)}"
    return ConfigError(key, f"{_shown(value)} is not possible", fix=f"{listed}; {hint}" if hint else listed)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = toml_value(value) if isinstance(value, bool | int | float | str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def toml_value(value: Any) -> str:
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _walk_types(cls: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(cls).items():
        if is_dataclass(kind):
            yield from _walk_types(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _docstrings(cls: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """The text under each field of a schema's classes, by dotted key."""
    module = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    docstrings = {
        field.target.id: " ".join(after.value.value.split())
        for field, after in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }
    for name, kind in get_type_hints(cls).items():
        if is_dataclass(kind):
            yield from _docstrings(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, docstrings.get(name, "")
