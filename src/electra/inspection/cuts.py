"""How a vocabulary cuts lines: tokens a word or a character by script, and lines to look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from electra.corpus.scripts import SPACELESS, count_characters, script_shares
from electra.inspection.facts import Piece, Pieces
from electra.tokenizer.codec import Tokenizer

KANA = "Han with kana"
_MIXED = ("Han", "Hiragana", "Katakana")
_UNSPACED = SPACELESS | {KANA}
_WORD = re.compile(r"\w\S*")
_CLOSERS = ".,;:!?…)]}>»›”’\"'।॥۔؟،؛"
SHOWN_CHARS = (24, 160)
"""A line to look at has so many characters, where there is one."""


def line_script(line: str) -> str | None:
    """The script that most of the line is in; None without letters. Japanese mixes three, which count as one."""
    shares = script_shares(count_characters([line]))
    main = next(iter(shares), None)
    if main in _MIXED and any(name in shares for name in _MIXED[1:]):
        return KANA
    return main


@dataclass(slots=True)
class _Count:
    lines: int = 0
    words: int = 0
    whole: int = 0
    chars: int = 0
    tokens: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Cuts:
    """Counts over lines, by the script that most of a line is in."""

    tokenizer: Tokenizer
    by_script: dict[str, _Count] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Count one cleaned line."""
        name = line_script(line)
        if name is None:
            return
        count = self.by_script.setdefault(name, _Count())
        ids, offsets = self.tokenizer.encode_with_offsets(line)
        unknown = self.tokenizer.unk_id
        spans = {span for number, span in zip(ids, offsets, strict=True) if number == unknown}
        starts = {start for start, end in offsets if end > start}
        count.lines += 1
        count.tokens += len(ids)
        count.chars += len("".join(line.split()))
        count.unknown += sum(end - start for start, end in spans)
        for start, end in _words(line) if name not in _UNSPACED else ():
            count.words += 1
            count.whole += not any(at in starts for at in range(start + 1, end)) and (start, end) not in spans

    def pieces(self) -> tuple[Pieces, ...]:
        """How finely the lines of each script are cut, the most lines first."""
        counts = sorted(self.by_script.items(), key=lambda item: (-item[1].lines, item[0]))
        return tuple(
            Pieces(
                script=name,
                lines=count.lines,
                spaced=name not in _UNSPACED,
                per_unit=count.tokens / max(1, count.chars if name in _UNSPACED else count.words),
                unknown=count.unknown / max(1, count.chars),
            )
            for name, count in counts
        )

    def total(self, name: str) -> int:
        """A count over all scripts."""
        return sum(getattr(count, name) for count in self.by_script.values())


def _words(line: str) -> Iterator[tuple[int, int]]:
    """Where the words between spaces begin and end, without punctuation around them."""
    for found in _WORD.finditer(line):
        yield found.start(), found.start() + len(found[0].rstrip(_CLOSERS))


def cut(line: str, tokenizer: Tokenizer) -> tuple[Piece, ...]:
    """The line as the characters that its tokens stand for."""
    ids, offsets = tokenizer.encode_with_offsets(line)
    pieces: list[Piece] = []
    reached = 0
    for number, (start, end) in zip(ids, offsets, strict=True):
        if pieces and end <= reached:  # one more byte of the same character
            pieces[-1] = replace(pieces[-1], tokens=pieces[-1].tokens + 1)
            continue
        shown = line[max(start, reached) : end]
        spaced = bool(line[reached:start].strip() != line[reached:start]) or shown[:1].isspace()
        text = "[UNK]" if number == tokenizer.unk_id else shown.strip()
        if text:
            pieces.append(Piece(text=text, spaced=spaced, unknown=number == tokenizer.unk_id))
        reached = end
    return tuple(pieces)


def lines_to_show(lines: Sequence[str], large: Sequence[str], *, count: int) -> list[str]:
    """Lines from all over the text, one of each of its large scripts among them."""
    low, high = SHOWN_CHARS
    fitting = [line for line in lines if low <= len(line) <= high] or [line[:high] for line in lines]
    by_script: dict[str | None, str] = {}
    for line in fitting[len(fitting) // 2 :] + fitting:  # a file's first lines are often its licence
        by_script.setdefault(line_script(line), line)
    chosen = {by_script[name]: None for name in large if name in by_script}
    for number in range(count):
        if fitting:
            chosen[fitting[(2 * number + 1) * len(fitting) // (2 * count)]] = None
    return list(chosen)[:count]
