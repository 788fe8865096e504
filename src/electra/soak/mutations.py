"""A file's bytes, damaged: by chance, and by what breaks readers of JSON, TOML, tables and archives."""

from __future__ import annotations

import json
import random
from typing import Any

from electra.errors import DataError
from electra.jsontext import parse_json

TOKENS: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"1e999", b"-1", b"0", b"1" * 5000, b"9" * 30, b"2e308", b"-0.0",
    b"null", b"true", b'""', b"[]", b"{}", b"[" * 2000, b'{"a":' * 2000, b"[" * 100, b'"\\ud800"', b"\\udfff",
    b"\\u0000", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[31m", b"\xc2\x9b2J", b"\r", b"\n\n", b"\t",
    b'"', b"'",
    b"\\", b",", b"=", b"../../x", b"/dev/zero", b"x" * 100_000, b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"<script>",
    b"1979-05-27", b"[[x]]", b"a.b.c=1", b"#", b"0x10", b"1_0",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 0.5, -0.5, 1e-300, 1e300, 2**31, 2**53, 2**63, 2**64, 10**40, float("nan"), "", "x",
    float("inf"), "x" * 5000, "\ud800", "\x1b[2J", "\0", "../../x", "/dev/zero", [], {}, [[]], [None], ["x"],
    {"": None},
    {"a": {"b": 1}}, [0] * 50, "0", "NaN", "true",
)  # fmt: skip


def mutated(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """What was done, and the damaged content."""
    if chance.random() < 0.5:
        lines = content.split(b"\n")
        at = chance.randrange(len(lines)) if len(lines) > 1 else 0
        for part, rebuild in ((content, lambda new: new), (lines[at], lambda new: _with_line(lines, at, new))):
            try:
                value = parse_json(part, where="a file before its damage")
            except DataError:
                continue
            name, damaged = _mutated_value(value, chance)
            return name, rebuild(json.dumps(damaged).encode())
    return _mutated_bytes(content, chance)


def _with_line(lines: list[bytes], at: int, line: bytes) -> bytes:
    return b"\n".join([*lines[:at], line, *lines[at + 1 :]])


def _mutated_value(value: Any, chance: random.Random) -> tuple[str, Any]:
    """The JSON value with one of its parts replaced, removed, renamed or wrapped."""
    places = list(_places(value, []))
    path = chance.choice(places)
    if not path:
        return "replaced the whole value", chance.choice(VALUES)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key, kind = (
        path[-1],
        chance.choice(("replace", "replace", "replace", "remove", "rename", "wrap", "repeat", "deepen")),
    )
    if kind == "remove":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[chance.choice(("", "x", f"{key} ", str(key).upper()))] = parent.pop(key)
    elif kind == "wrap":
        parent[key] = chance.choice(([parent[key]], {"x": parent[key]}, str(parent[key])))
    elif kind == "repeat" and isinstance(parent, list):
        parent += parent[: 1 + chance.randrange(len(parent))]
    elif kind == "deepen":
        for _ in range(chance.choice((10, 100))):
            parent[key] = [parent[key]]
    else:
        kind, parent[key] = "replace", chance.choice(VALUES)
    return f"{kind} {'.'.join(map(str, path))[:60]}", value


def _places(value: Any, path: list[Any]) -> Any:
    """The path to every part of a value; of a long list, to some."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], [*path, key])
    elif isinstance(value, list):
        for at in range(min(len(value), 8)):
            yield from _places(value[at], [*path, at])


def _mutated_bytes(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    at = chance.randrange(len(content) + 1)
    end = min(len(content), at + chance.choice((1, 1, 4, 16, 256)))
    kind = chance.choice(
        ("flip", "flip", "truncate", "cut", "repeat", "insert", "insert", "overwrite", "noise", "empty")
    )
    if kind == "flip" and at < len(content):
        return f"flipped a bit of byte {at}", content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[
            at + 1 :
        ]
    if kind == "truncate":
        return f"truncated to {at} bytes", content[:at]
    if kind == "cut":
        return f"cut out {at} to {end}", content[:at] + content[end:]
    if kind == "repeat":
        return f"repeated {at} to {end}", content[:end] + content[at:]
    if kind == "noise":
        noise = chance.randbytes(chance.choice((1, 8, 512)))
        return f"{len(noise)} bytes of noise at {at}", content[:at] + noise + content[at:]
    if kind == "empty":
        return "emptied", b""
    token = chance.choice(TOKENS)
    rest = content[at + len(token) :] if kind == "overwrite" else content[at:]
    return f"{kind} {token[:12]!r} at {at}", content[:at] + token + rest
