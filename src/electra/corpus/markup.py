"""Pages and notes as plain paragraphs: HTML without tags, scripts and navigation, Markdown without its markup.

HTML is scanned once, in linear time: on a page of unclosed tags the standard library's parser takes minutes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_RAW = frozenset("script style".split())
"""Elements whose content is no markup."""
_LEFT_OUT = frozenset("nav template noscript svg iframe object canvas audio video select button".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark math q rb rp rt ruby s samp "
    "small span strike strong sub sup time tt u var wbr".split()
)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile(r"[\"'>]")


def html_paragraphs(page: str) -> list[str]:
    """The paragraphs, headings, list items and lines of a page, in order."""
    reader = _Page()
    for kind, value in _scan(page):
        reader.take(kind, value)
    reader.end_paragraph()
    return reader.paragraphs


class _Page:
    """Collects text into paragraphs, except inside elements that are left out."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self._text: list[str] = []
        self._skipping, self._depth = "", 0
        self._verbatim = 0

    def take(self, kind: str, value: str) -> None:
        if self._skipping:
            if value == self._skipping and kind != "text":
                self._depth += 1 if kind == "start" else -1
            if not self._depth:
                self._skipping = ""
        elif kind == "text":
            self._add(html.unescape(value))
        elif kind == "start" and value in _LEFT_OUT:
            self.end_paragraph()
            self._skipping, self._depth = value, 1
        elif value not in _INLINE:
            self.end_paragraph()
            if value == "pre":
                self._verbatim = max(0, self._verbatim + (1 if kind == "start" else -1))

    def _add(self, text: str) -> None:
        first, *others = text.split("\n") if self._verbatim else [text]
        self._text.append(first)
        for line in others:
            self.end_paragraph()
            self._text.append(line)

    def end_paragraph(self) -> None:
        if paragraph := " ".join("".join(self._text).split()):
            self.paragraphs.append(paragraph)
        self._text = []


def _scan(page: str) -> Iterator[tuple[str, str]]:
    """("text", characters), ("start", element) and ("end", element), in order, without comments and declarations."""
    at = 0
    while at < len(page):
        begin = page.find("<", at)
        if begin != at:
            yield "text", page[at : begin if begin >= 0 else len(page)]
        if begin < 0:
            return
        found = _TAG.match(page, begin)
        if found is None:
            at = _after_other(page, begin)
            if at == begin + 1:
                yield "text", "<"
            continue
        at = _tag_end(page, found.end())
        if at < 0:  # no tag: nothing ends it
            yield "text", page[begin:]
            return
        name = found[2].lower()
        if name in _RAW and not found[1]:
            end = re.compile(f"</{name}", re.IGNORECASE).search(page, at)
            at = end.start() if end else len(page)
        else:
            yield ("end" if found[1] else "start"), name


def _after_other(page: str, begin: int) -> int:
    """Where a comment or a declaration ends; behind the `<`, where it is neither."""
    if page.startswith("<!--", begin):
        end = page.find("-->", begin + 4)
        return end + 3 if end >= 0 else len(page)
    if page.startswith(("<!", "<?", "</"), begin):
        end = page.find(">", begin)
        return end + 1 if end >= 0 else len(page)
    return begin + 1


def _tag_end(page: str, at: int) -> int:
    """Behind the `>` of a tag, which is not one inside a quoted value; -1 where there is none."""
    while found := _QUOTE_OR_END.search(page, at):
        at = found.end()
        if found[0] == ">":
            return at
        if page[at - 2] in "= \t\n":
            close = page.find(found[0], at)
            at = close + 1 if close >= 0 else at
    return -1


_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_RULE = re.compile(r"\s*([-*_=]\s*)+$")
_TABLE_RULE = re.compile(r"[\s|:-]+$")
_DEFINITION = re.compile(r" {0,3}\[[^\]]+\]:\s")
_MARKER = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_QUOTE = re.compile(r"\s{0,3}(?:>\s?)+")
_HEADING = re.compile(r" {0,3}#{1,6}\s+")
_INLINE_MARKUP = [
    (re.compile(r"<!--[^<>]*-->|</?[a-zA-Z][^<>]*>"), ""),
    (re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])"), r"\1"),
    (re.compile(r"(?<![\w*\\])\*{1,3}(?=[^\s*])|(?<=[^\s*\\])\*{1,3}(?![\w*])"), ""),
    (re.compile(r"(?<![\w\\])_{1,3}(?=[^\s_])|(?<=[^\s_\\])_{1,3}(?!\w)"), ""),
    (re.compile(r"~~|`+"), ""),
    (re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])"), r"\1"),
]


def markdown_paragraphs(text: str) -> list[str]:
    """The paragraphs, headings, list items, table rows and lines of code of a note, in order.

    The lines of a paragraph are joined. Code stays as it is.
    """
    paragraphs: list[str] = []
    held: list[str] = []
    fence = ""

    def end_paragraph() -> None:
        if held:
            paragraphs.append(_plain(" ".join(held)))
        held.clear()

    for line in _body(text.split("\n")):
        marks = _FENCE.match(line)
        if fence:
            if marks and marks[1].startswith(fence):
                fence = ""
            else:
                paragraphs.append(line)
            continue
        line = line[found.end() :] if (found := _QUOTE.match(line)) else line
        item = _MARKER.match(line)
        table = line.lstrip().startswith("|")
        heading = _HEADING.match(line)
        if marks or not line.strip() or item or table or heading or _RULE.match(line) or _DEFINITION.match(line):
            end_paragraph()
        if marks:
            fence = marks[1]
        elif heading:
            paragraphs.append(_plain(line[heading.end() :].rstrip().rstrip("#")))
        elif table:
            if not _TABLE_RULE.match(line):
                paragraphs.append(_plain(line.replace("|", " ")))
        elif not (_RULE.match(line) or _DEFINITION.match(line)) and line.strip():
            held.append(line[item.end() :] if item else line)
    end_paragraph()
    return [paragraph for paragraph in paragraphs if paragraph.strip()]


def _body(lines: list[str]) -> list[str]:
    """The lines without settings (front matter) at the top."""
    if lines[0].rstrip() == "---":
        end = next((at for at, line in enumerate(lines[1:200], 1) if line.rstrip() in ("---", "...")), 0)
        return lines[end + 1 :] if end else lines
    return lines


def _plain(text: str) -> str:
    for pattern, instead in _INLINE_MARKUP:
        text = pattern.sub(instead, text)
    return " ".join(html.unescape(text).split())
