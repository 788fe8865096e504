"""What stands between the fields of a .csv file: commas, or what spreadsheets write in many countries."""

from __future__ import annotations

import re
from pathlib import Path

from electra.progress import say

_QUOTED = re.compile(r'"[^"]*"')
_NAMES = {";": "semicolons", "\t": "tabs"}


def csv_separator(header: str) -> str:
    """Of a file with this first line: a comma, or a semicolon or a tab where that line has no comma."""
    names = _QUOTED.sub("", header)
    return "," if "," in names else max(",;\t", key=names.count)


def say_separator(path: Path, separator: str) -> None:
    """Say what stands between the fields of a file, unless it is the usual comma."""
    if separator in _NAMES:
        say(f"{path}: its fields have {_NAMES[separator]} between them")
