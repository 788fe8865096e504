"""Scripts of text: the table against Unicode's own property, and shares counted by hand."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from electra.corpus.scripts import OTHER, SPACELESS, count_characters, script, script_shares, spaceless_share


def test_the_table_is_unicodes_property() -> None:
    regex = pytest.importorskip("regex", reason="the package regex knows Unicode's property Script")
    letters = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "LM"]
    found: dict[str | None, set[str]] = {}
    for char in letters:
        found.setdefault(script(char), set()).add(char)
    assert set(found) >= SPACELESS
    everything = "".join(letters)
    for name, chars in found.items():
        if name not in (None, OTHER):
            assert chars == set(regex.findall(rf"\p{{Script={name}}}", everything)), name
    assert script("\u0301") is None and script("7") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Straße, 12!", {"Latin": 1.0}),
        ("Москва USA", {"Cyrillic": 6 / 9, "Latin": 3 / 9}),
        ("ภาษาไทย", {"Thai": 1.0}),
        ("東京タワーです", {"Han": 2 / 6, "Hiragana": 2 / 6, "Katakana": 2 / 6}),  # ー belongs to no script
        ("हिन्दी", {"Devanagari": 1.0}),
        ("한국어", {"Hangul": 1.0}),
        ("tiếng Việt", {"Latin": 1.0}),
        ("e\u0301", {"Latin": 1.0}),
        ("𐎀a", {"Latin": 0.5, OTHER: 0.5}),
        ("2024 … ☃", {}),
    ],
)
def test_shares_of_letters(text: str, expected: dict[str, float]) -> None:
    shares = script_shares(count_characters([text]))
    assert shares == pytest.approx(expected)
    assert list(shares) == sorted(shares, key=lambda name: (-shares[name], name))


def test_spaceless_scripts() -> None:
    for text in ("中文", "ひらがな", "カタカナ", "ไทย", "ລາວ", "ខ្មែរ", "မြန်မာ", "བོད་ཡིག"):
        assert spaceless_share(script_shares(count_characters([text]))) == 1
    for text in ("हिन्दी", "한국어", "العربية", "Việt", "русский", "አማርኛ", "தமிழ்"):
        assert spaceless_share(script_shares(count_characters([text]))) == 0
    assert spaceless_share(script_shares(count_characters(["中文", "abcd"]))) == pytest.approx(1 / 3)
