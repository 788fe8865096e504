"""Which writing systems a text uses, by the share of its letters, and which of them write without spaces.

counts = count_characters(lines)
shares = script_shares(counts)      # {"Thai": 0.93, "Latin": 0.07}, the largest first
spaceless_share(shares)             # 0.93
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

SPACELESS = frozenset(
    ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Javanese", "Balinese")
    + ("Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet")
)
"""Scripts that write words without spaces between them."""

OTHER = "Other"
"""What letters of all further scripts count as: historic ones, and those that have no table here."""

# Unicode's property Script as ranges of letters and marks; a gap that holds neither is part of a range.
_RANGES = {
    "Latin": "41-aa ba-2b8 2e0-2e4 1d00-1d25 1d2c-1d5c 1d62-1d65 1d6b-1d77 1d79-1dbe 1e00-1eff 2071-209c 212a-212b "
    "2132-2132 214e-2184 2c60-2c7f a722-a787 a78b-a7ff ab30-ab64 ab66-ab69 fb00-fb06 ff21-ff5a 10780-107ba 1df00-1df2a",
    "Greek": "370-373 376-3e1 3f0-3ff 1d26-1d2a 1d5d-1d61 1d66-1d6a 1dbf-1dbf 1f00-1ffc 2126-2126 ab65-ab65 "
    "1d242-1d244",
    "Cyrillic": "400-484 487-52f 1c80-1c8a 1d2b-1d2b 1d78-1d78 2de0-2dff a640-a69f fe2e-fe2f",
    "Armenian": "531-588 fb13-fb17",
    "Hebrew": "591-5f2 fb1d-fb4f",
    "Arabic": "610-63f 641-64a 656-66f 671-6ff 750-77f 870-8ff fb50-fdfb fe70-fefc 1ee00-1eebb",
    "Syriac": "710-74f 860-86a",
    "Thaana": "780-7b1",
    "NKo": "7ca-7fd",
    "Devanagari": "900-950 955-97f a8e0-a8ff",
    "Bengali": "980-9fe",
    "Gurmukhi": "a01-a75",
    "Gujarati": "a81-aff",
    "Oriya": "b01-b71",
    "Tamil": "b82-bd7",
    "Telugu": "c00-c63",
    "Kannada": "c80-cf3",
    "Malayalam": "d00-d7f",
    "Sinhala": "d81-df3",
    "Thai": "e01-e4e",
    "Lao": "e81-edf",
    "Tibetan": "f00-fc6",
    "Myanmar": "1000-109d a9e0-a9fe aa60-aa7f",
    "Georgian": "10a0-10ff 1c90-1cbf 2d00-2d2d",
    "Hangul": "1100-11ff 302e-302f 3131-318e a960-a97c ac00-d7fb ffa0-ffdc",
    "Ethiopic": "1200-138f 2d80-2dde ab01-ab2e 1e7e0-1e7fe",
    "Cherokee": "13a0-13fd ab70-abbf",
    "Canadian_Aboriginal": "1401-167f 18b0-18f5 11ab0-11abf",
    "Khmer": "1780-17dd",
    "Mongolian": "180b-18aa",
    "Tai_Le": "1950-1974",
    "New_Tai_Lue": "1980-19c9",
    "Tai_Tham": "1a20-1aa7",
    "Tai_Viet": "aa80-aadd",
    "Balinese": "1b00-1b73",
    "Javanese": "a980-a9c0",
    "Sundanese": "1b80-1bbf",
    "Tifinagh": "2d30-2d7f",
    "Hiragana": "3041-3096 309d-309f 1b001-1b11f 1b132-1b132 1b150-1b152",
    "Katakana": "30a1-30fa 30fd-30ff 31f0-31ff ff66-ff6f ff71-ff9d 1aff0-1b000 1b120-1b122 1b155-1b155 1b164-1b167",
    "Bopomofo": "3105-312f 31a0-31bf",
    "Han": "3005-3005 303b-303b 3400-9fff f900-fad9 16fe3-16fe3 16ff0-16ff1 20000-323af",
    "Yi": "a000-a48c",
    "Meetei_Mayek": "aae0-aaf6 abc0-abed",
    "Ol_Chiki": "1c5a-1c7d",
    "Adlam": "1e900-1e94b",
    "Vai": "a500-a62b",
}


def ranges(name: str) -> list[tuple[int, int]]:
    """First and last code points of a script's ranges."""
    return [(int(first, 16), int(last, 16)) for first, _, last in (one.partition("-") for one in _RANGES[name].split())]


_TABLE = sorted((first, last, name) for name in _RANGES for first, last in ranges(name))
_FIRST = [first for first, _, _ in _TABLE]


def script(char: str) -> str | None:
    """The script of a letter or mark; None for everything else and for marks that any script uses."""
    category = unicodedata.category(char)
    if category[0] not in "LM":
        return None
    first, last, name = _TABLE[max(0, bisect_right(_FIRST, ord(char)) - 1)]
    if first <= ord(char) <= last:
        return name
    return OTHER if category in ("Lu", "Ll", "Lt", "Lo") else None


def count_characters(lines: Iterable[str]) -> Counter[str]:
    """How often each character occurs."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return counts


def script_shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Each script's share of the letters and marks, the largest first; empty where there are none."""
    found: Counter[str] = Counter()
    for char, count in counts.items():
        if name := script(char):
            found[name] += count
    total = found.total()
    return {name: found[name] / total for name in sorted(found, key=lambda name: (-found[name], name))}


def spaceless_share(shares: Mapping[str, float]) -> float:
    """The part of the letters whose scripts write without spaces."""
    return sum(share for name, share in shares.items() if name in SPACELESS)
