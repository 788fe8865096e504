"""Paragraphs into sentences, by Unicode's sentence terminators, in any language; where in doubt it does not split.

A sentence stays whole, however long: what does not fit into a row is cut between tokens, by the layout.
"""

from __future__ import annotations

import re

# Unicode's property Sentence_Terminal (version 17). Three of its characters also stand inside of numbers, names and
# abbreviations, and end a sentence only before a space; an ellipsis is none of them and does the same.
_SPACED = ".!?"
_UNSPACED = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    "\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002"
    "\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb"
    "\ufe12\ufe15\ufe16\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
_BEYOND_BMP = (  # a class with these among its characters is searched many times slower
    "\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1"
    "\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    "\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642"
    "\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7"
    "\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f"
    "\U00016e98\U0001bc9f\U0001da88"
)
_SHAD = "\u0f0d-\u0f12"  # Tibetan's, which Unicode leaves out because it ends clauses too

_CLOSERS = "\"'”’»›)\\]}"
_WIDE_CLOSERS = "」』）】〉》〕｝］"
_STOP = re.compile(rf"[{_SPACED}…][{_CLOSERS}]* (?=[^a-z ,;:)\]}}&–—-])")


def _wide_stop(terminators: str) -> re.Pattern[str]:
    """Terminators that need no space behind them; but a full stop of full width before a digit is a decimal point."""
    return re.compile(rf"[{terminators}](?:(?<!．)|(?![0-9０-９]))[{terminators}!?…{_CLOSERS}{_WIDE_CLOSERS}]* ?")


_WIDE_STOP = _wide_stop(_UNSPACED + _SHAD)
_EVERY_WIDE_STOP = _wide_stop(_UNSPACED + _SHAD + _BEYOND_BMP)
_OUTSIDE_BMP = re.compile("[\U00010000-\U0010ffff]")
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
    return sentences


def _split_wide(paragraph: str) -> list[str]:
    """Cut after the full stops that need no space behind them."""
    stop = _EVERY_WIDE_STOP if _OUTSIDE_BMP.search(paragraph) else _WIDE_STOP
    pieces, start = [], 0
    for match in stop.finditer(paragraph):
        pieces.append(paragraph[start : match.end()].rstrip(" "))
        start = match.end()
    return [*pieces, paragraph[start:]] if start < len(paragraph) else pieces


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
