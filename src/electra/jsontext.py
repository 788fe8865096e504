"""JSON text to values, within limits: the only reader of JSON in this package.

What comes from elsewhere may be nested without end, hold numbers that are none or that fit nowhere, name a key twice,
or hold half a character (a lone surrogate), which nothing can print: each is one line that names the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from electra.errors import CheckpointError, DataError

MAX_DEPTH = 64
MAX_NUMBER = 2**63 - 1
"""Whole numbers beyond fit no tensor and no file."""

FileError = type[DataError] | type[CheckpointError]


def parse_json(data: bytes | str, *, where: object, error: FileError = DataError, fix: str = "") -> Any:
    """A JSON value; `error` for NaN, infinity, numbers beyond 64 bits, a key twice, half a character, or 65 levels."""
    try:
        return _parsed(data, _STRICT, _refuse_halves)
    except (ValueError, RecursionError) as problem:
        raise error(where, f"cannot be read as JSON: {_reason(problem)}", fix=fix) from problem


def parse_row(line: bytes | str, *, where: object, number: int) -> dict[str, Any]:
    """The object in a line of text data; numbers may be anything, the last of equal keys counts, half characters go."""
    fix = 'one object a line: {"text": ...}'
    try:
        value = _parsed(line, _LENIENT, _drop_halves)
    except (ValueError, RecursionError) as problem:
        raise DataError(where, f"line {number} is not JSON: {_reason(problem)}", fix=fix) from problem
    if not isinstance(value, dict):
        raise DataError(where, f"line {number} is not a JSON object", fix=fix)
    return value


def _parsed(data: bytes | str, decoder: json.JSONDecoder, halves: Callable[[Any], Any]) -> Any:
    text = data.decode() if isinstance(data, bytes) else data
    value = decoder.decode(text.removeprefix("\ufeff"))
    if text.count("[") + text.count("{") > MAX_DEPTH:  # cannot be deeper otherwise, and counting is quick
        _require_shallow(value)
    if "\\ud" in text or "\\uD" in text:  # an escape is the only way for half a surrogate pair to get in
        value = halves(value)
    return value


def _require_shallow(value: Any) -> None:
    inner = [value]
    for _ in range(MAX_DEPTH):
        parts = (one.values() if isinstance(one, dict) else one for one in inner if isinstance(one, dict | list))
        inner = [one for part in parts for one in part if isinstance(one, dict | list)]
        if not inner:
            return
    raise RecursionError


def _refuse_halves(value: Any) -> Any:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict | list):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _refuse_halves(part)
    return value


def _drop_halves(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="ignore").decode()
    if isinstance(value, dict):
        return {_drop_halves(key): _drop_halves(part) for key, part in value.items()}
    return [_drop_halves(part) for part in value] if isinstance(value, list) else value


def _reason(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return f"it is nested more than {MAX_DEPTH} levels deep"
    if isinstance(problem, UnicodeDecodeError):
        return f"byte {problem.start} is not valid UTF-8"
    return "it holds half a surrogate pair" if isinstance(problem, UnicodeEncodeError) else str(problem)


def _whole(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_NUMBER:
        raise ValueError(f"the number {digits[:20]}{'...' if len(digits) > 20 else ''} is too large")
    return int(digits)


def _fraction(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} stands twice")
    return value


_STRICT = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_constant, object_pairs_hook=_unique)
_LENIENT = json.JSONDecoder()
