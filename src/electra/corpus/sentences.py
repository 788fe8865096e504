"""Paragraphs into sentences, by rule, in any language; where in doubt it does not split."""

from __future__ import annotations

import re

MAX_SENTENCE_CHARS = 1000
"""Longer sentences are cut at a space: text without full stops would otherwise be lost to truncation."""

_CLOSERS = "\"'”’»›)\\]}"
_STOP = re.compile(rf"[.!?…][{_CLOSERS}]* (?=[^a-z ,;:)\]}}&–—-])")
_WIDE_STOP = re.compile(rf"[。｡！？।॥۔؟።։။។][。！？{_CLOSERS}」』）】〉》]* ?")
_OPENERS = "\"'“‘«‹„([{¿¡"
_DOTTED = re.compile(r"(?:\w\.)+\w{1,2}")

_NEVER_LAST = """
mr mrs ms dr prof sr jr st hon rev fr gen col maj capt cpt lt sgt cmdr adm gov sen rep pres supt messrs mme mlle
mm vs etc al cf eg ie viz ca approx dept univ assn bros inc ltd co corp est eds trans ave blvd rd mt ft
jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs
bzw usw evtl ggf inkl zzgl vgl sog bspw geb gest hr hl dipl
sra srta dra ud uds ptas gral núm pág avda
éd sigg dott ecc pag
dhr mevr drs enz
"""
_BEFORE_NUMBERS = "no nos nr p pp vol vols fig figs eq eqs ch chap sec sect art par op ver num tab n"
_ABBREVIATIONS = frozenset(_NEVER_LAST.split())
_NUMBERED = frozenset(_BEFORE_NUMBERS.split())


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of one cleaned line, in order; joined, they are the line."""
    pieces = [paragraph] if paragraph.isascii() else _split_wide(paragraph)
    sentences: list[str] = []
    for piece in pieces:
        start = 0
        for match in _STOP.finditer(piece):
            if _ends_sentence(piece, match):
                sentences.append(piece[start : match.end() - 1])
                start = match.end()
        sentences.append(piece[start:])
    if any(len(sentence) > MAX_SENTENCE_CHARS for sentence in sentences):
        return [part for sentence in sentences for part in _cut(sentence)]
    return sentences


def _split_wide(paragraph: str) -> list[str]:
    """Cut after the full stops that need no space behind them."""
    if not _WIDE_STOP.search(paragraph):
        return [paragraph]
    pieces, start = [], 0
    for match in _WIDE_STOP.finditer(paragraph):
        pieces.append(paragraph[start : match.end()].rstrip(" "))
        start = match.end()
    if start < len(paragraph):
        pieces.append(paragraph[start:])
    return pieces


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    stop, following = match.start(), text[match.end()]
    if following.islower():
        return False
    if text[stop] != "." or match.end() - stop > 2:  # ! ? … or a closing quote behind the full stop
        return True
    begin = text.rfind(" ", 0, stop) + 1
    word = text[begin:stop].lstrip(_OPENERS)
    if len(word) <= 1:
        return not word.isalpha() and not (word.isdigit() and begin == 0)
    if word.isdigit():
        return begin > 0 or len(word) > 3  # `12. The cellar` numbers a paragraph
    lower = word.lower()
    if lower in _ABBREVIATIONS or (lower in _NUMBERED and following.isdigit()):
        return False
    return not ("." in word and _DOTTED.fullmatch(word))


def _cut(sentence: str) -> list[str]:
    parts = []
    while len(sentence) > MAX_SENTENCE_CHARS:
        at = sentence.rfind(" ", 1, MAX_SENTENCE_CHARS)
        if at < 0:
            parts.append(sentence[:MAX_SENTENCE_CHARS])
            sentence = sentence[MAX_SENTENCE_CHARS:]
        else:
            parts.append(sentence[:at])
            sentence = sentence[at + 1 :]
    parts.append(sentence)
    return parts
