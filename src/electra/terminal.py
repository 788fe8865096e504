"""Text from anywhere as text for a terminal: what would steer it becomes visible."""

from __future__ import annotations

import json
import re
from typing import Any

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_IN_JSON = re.compile(r"[\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters but tab and newline, and half surrogate pairs, written as `\\x1b`."""
    return text if text.isprintable() else _CONTROLS.sub(_escaped, text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that a terminal shows and a reader reads back: control characters are escaped."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=indent, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
