"""Cleaning of single lines, and the part of a text that decides whether two documents are the same."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

KEY_BYTES = 16

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_LOWER = bytes(code + 32 if 65 <= code <= 90 else code for code in range(256))
_ASCII_REST = bytes(code for code in range(128) if not chr(code).isalnum())
_FOLDED_LIMIT = 50_000
_folded: dict[str, str] = {}


def clean(line: str) -> str:
    """The line in Unicode NFC, without control characters, with single spaces and none at the ends."""
    if not unicodedata.is_normalized("NFC", line):
        line = unicodedata.normalize("NFC", line)
    if line.isprintable() and "  " not in line:  # true of nearly every line, and a tenth of the time
        return line.strip(" ")
    # Whitespace first: some control characters are separators and must not glue two words together.
    line = _UNPRINTABLE.sub("", " ".join(line.split()))
    return " ".join(unicodedata.normalize("NFC", line).split())


def fold(line: str) -> bytes:
    """The letters and digits of the line, case-folded: what stays equal when spacing and punctuation change."""
    kept = line.encode().translate(_LOWER, _ASCII_REST)
    return kept if kept.isascii() else _NOT_ASCII.sub(_fold_run, kept.decode()).encode()


def _fold_run(match: re.Match[str]) -> str:
    run = match.group()
    folded = _folded.get(run)
    if folded is None:
        if len(_folded) >= _FOLDED_LIMIT:
            _folded.clear()
        folded = _folded[run] = "".join(filter(str.isalnum, run.casefold()))
    return folded


def content_key(lines: Iterable[str]) -> bytes | None:
    """16 bytes that name the text of a document, or None where it has no letter or digit at all."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    empty = True
    for line in lines:
        folded = fold(line)
        empty = empty and not folded
        digest.update(folded)
    return None if empty else digest.digest()
