"""Cleaning and content keys."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from electra.corpus.text import clean, content_key, fold


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("plain text", "plain text"),
        ("  two   spaces \t and a tab ", "two spaces and a tab"),
        ("no\u00a0break\u3000wide\u2028line", "no break wide line"),
        ("e\u0301", "é"),
        ("a\x00b\x07c\x1bd", "abcd"),
        ("\ufefftext", "text"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("e\x01\u0301", "é"),
        ("\x0c", ""),
        ("", ""),
    ],
)
def test_clean_cases(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


@given(st.text())
@example("e\x01\u0301 \u2000")
def test_cleaned_text_is_normal_and_stays_as_it_is(raw: str) -> None:
    cleaned = clean(raw)
    assert unicodedata.is_normalized("NFC", cleaned)
    assert clean(cleaned) == cleaned
    assert "  " not in cleaned and cleaned == cleaned.strip()
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in cleaned)
    cleaned.encode()


@given(st.text())
def test_fold_keeps_letters_and_digits_casefolded(raw: str) -> None:
    line = clean(raw)
    assert fold(line).decode() == "".join(char for char in line.casefold() if char.isalnum())


def test_content_key_ignores_case_spacing_and_punctuation_only() -> None:
    key = content_key(["Hello, World!", "Straße 12"])
    assert key is not None and len(key) == 16
    assert key == content_key(["hello world", "STRASSE; 1-2"])
    assert key == content_key(["Hello, World! Straße 12"])
    assert key != content_key(["Hello, World!", "Straße 13"])
    assert content_key(["...", "?!"]) is None
