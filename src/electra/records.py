"""JSON values as dataclasses: every field of its type, or one line that names the file and the key."""

from __future__ import annotations

import functools
import math
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from electra.errors import DataError
from electra.jsontext import FileError

Read = TypeVar("Read")


def read_record(
    cls: type[Read],
    value: Any,
    *,
    where: object,
    key: str = "",
    whole: bool = False,
    error: FileError = DataError,
    fix: str = "",
) -> Read:
    """The dataclass in a JSON object; keys that it does not have, such as those of a later version, are left out.

    With `whole`, its own fields must be there although they have defaults. In a list or an object of floats, null
    stands for a number that is not finite: so `write_json` writes it.
    """
    try:
        for one in fields(cls) if whole and isinstance(value, dict) else ():  # type: ignore[arg-type]
            if one.name not in value:
                raise _Misfit(f"has no '{one.name}'")
        read: Read = _typed(value, cls, key)
    except _Misfit as misfit:
        raise error(where, str(misfit), fix=fix) from misfit
    return read


class _Misfit(Exception):
    """A value that its field cannot have."""


def _object(value: Any, cls: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise _Misfit(f"has no '{name}'" if name else "is not a JSON object")
    hints = _hints(cls)
    read: dict[str, Any] = {}
    for one in fields(cls):
        path = f"{name}.{one.name}" if name else one.name
        if one.name in value:
            read[one.name] = _typed(value[one.name], hints[one.name], path)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise _Misfit(f"has no '{path}'")
    try:
        return cls(**read)
    except ValueError as problem:  # of a `__post_init__`
        raise _Misfit(str(problem)) from problem


@functools.cache  # a manifest holds thousands of records of one class
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _typed(value: Any, kind: Any, name: str) -> Any:
    if is_dataclass(kind):
        return _object(value, kind, name)
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or (origin is Literal and isinstance(value, str) and value in parts):
        return value
    if origin in (Union, UnionType):
        if value is None and type(None) in parts:
            return None
        return _typed(value, next(part for part in parts if part is not type(None)), name)
    if origin in (tuple, list) and isinstance(value, list):
        return origin(_inner(one, parts[0], f"{name}[{at}]") for at, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {one: _inner(part, parts[1], f"{name}.{one}") for one, part in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    raise _Misfit(f"{name or 'the value'} is {str(value)[:40]!r}, which cannot be")


def _inner(value: Any, kind: Any, name: str) -> Any:
    return math.nan if kind is float and value is None else _typed(value, kind, name)
