"""An inspection as text for a terminal of 80 columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from electra.inspection.advice import advice
from electra.inspection.facts import EDGES, Extent, Inspection, Lengths, Piece
from electra.progress import counted, scaled

WIDTH = 80
MOST_SCRIPTS = 10
_LABEL = 14
_BAR = 24
_LEAST_SHARE = 0.0005
"""Smaller ones round to 0.0%."""
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def as_text(found: Inspection) -> str:
    """Everything that was found, in lines of at most 80 columns."""
    return "\n".join(
        [
            *_labelled("Text", extent_words(found.extent)),
            *_labelled("Left out", left_out_words(found)),
            *_labelled("Scripts", shares_words(found.scripts)),
            *_labelled("Languages", languages_words(found)),
            "",
            *_labelled("Training", split_words(found.training)),
            *_labelled("Held out", split_words(found.held_out)),
            *_labelled("Vocabulary", vocabulary_words(found)),
            "",
            *_histogram(found),
            "",
            f"{'Row length':<{_LABEL}}{'rows':>10}{'tokens kept':>14}{'padding':>10}",
            *(f"{row.length:<{_LABEL}}{row.rows:>10,}{row.kept:>14.1%}{row.padding:>10.1%}" for row in found.rows),
            "",
            f"{'Script':<{_LABEL}}{'lines':>10}{'tokens':>21}{'unknown':>12}",
            *(
                f"{pieces.script:<{_LABEL}}{pieces.lines:>10,}"
                f"{f'{pieces.per_unit:.2f} a ' + ('word' if pieces.spaced else 'character'):>21}{pieces.unknown:>12.2%}"
                for pieces in found.pieces[:MOST_SCRIPTS]
            ),
            "",
            "Lines as tokens (· inside words; ² is one character in two tokens)",
            *(line for pieces in found.lines for line in _token_line(pieces)),
            *[line for hint in advice(found) for line in ("", *_labelled("Note", hint))],
        ]
    )


def extent_words(extent: Extent) -> str:
    """How much text there is and how much of it was measured."""
    files = f"{counted(extent.files, 'file')}, {scaled(extent.stored_bytes)}B"
    if extent.whole:
        return f"{files}; all of it was measured"
    some = f" from {extent.files_read:,} of the files" if extent.files_read < extent.files else ""
    return f"{files}; measured: {scaled(extent.sample_bytes)}B of about {scaled(extent.text_bytes)}B of text{some}"


def left_out_words(found: Inspection) -> str:
    """Files and documents that would not be used."""
    parts = [f"{count:,} {suffix}" for suffix, count in found.extent.left_out.items()]
    files = f"files not read: {', '.join(parts)}; " if parts else ""
    return f"{files}documents: {found.too_short:,} too short, {found.repeated:,} repeated"


def shares_words(shares: dict[str, float], *, most: int = 8) -> str:
    """`Latin 98.2%, Greek 1.8%`."""
    large = {name: share for name, share in list(shares.items())[:most] if share >= _LEAST_SHARE}
    shown = [f"{name.replace('_', ' ')} {percent(share)}" for name, share in large.items()]
    rest = sum(share for name, share in shares.items() if name not in large)
    return ", ".join([*shown, *([f"others {percent(rest)}"] if rest else [])]) or "no letters"


def languages_words(found: Inspection) -> str:
    """The guessed languages with what the guess is worth."""
    unsure = f"{'; ' if found.languages else ''}not clear for {percent(found.unsure)}" if found.unsure else ""
    return (
        (shares_words(found.languages) if found.languages else "")
        + unsure
        + " (a guess from scripts and frequent words)"
    )


def split_words(counts: Mapping[str, int]) -> str:
    """Documents, sentences and tokens of a split."""
    return ", ".join(counted(counts[f"{one}s"], one) for one in ("document", "sentence", "token"))


def vocabulary_words(found: Inspection) -> str:
    """Where the vocabulary is from and how much of it and by it is used."""
    own = found.vocabulary
    origin = "of the file" if own.given else "trained on what was measured"
    words = "" if own.whole_words is None else f"{own.whole_words:.0%} of the words are one token; "
    return (
        f"{own.kind}, {own.entries:,} entries {origin}, {own.occurring:,} of them occur; {words}"
        f"{own.unknown:.2%} of the characters are unknown"
    )


def percent(share: float) -> str:
    """`0.3%`; never zero for what is there."""
    return "under 0.1%" if 0 < share < _LEAST_SHARE else f"{share:.1%}"


def classes() -> list[str]:
    """Names of the length classes."""
    return [*(f"{a + 1}-{b}" for a, b in zip((0, *EDGES), EDGES, strict=False)), f"over {EDGES[-1]}"]


def _histogram(found: Inspection) -> Iterator[str]:
    pairs = (found.document_lengths, found.sentence_lengths)
    yield f"{'Tokens':<{_LABEL}}{'documents':<{_BAR + 9}}sentences"
    for name, shares in zip(classes(), zip(*(pair.shares for pair in pairs), strict=True), strict=True):
        cells = [f"{share:>6.1%} {'█' * round(_BAR * share) or ('▏' if share else '')}" for share in shares]
        yield f"{name:<{_LABEL}}{cells[0]:<{_BAR + 9}}{cells[1]}".rstrip()
    cells = [_middle(pair) for pair in pairs]
    yield f"{'':<{_LABEL}}{cells[0]:<{_BAR + 9}}{cells[1]}"


def _middle(lengths: Lengths) -> str:
    return f"median {lengths.median:,}, longest {lengths.longest:,}"


def _labelled(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(wrapped(text.split(" "), WIDTH - _LABEL)):
        yield f"{label if number == 0 else '':<{_LABEL}}{line}"


def _token_line(pieces: Sequence[Piece]) -> Iterator[str]:
    words: list[str] = []
    for piece in pieces:
        text = piece.text + (str(piece.tokens).translate(_SUPERSCRIPTS) if piece.tokens > 1 else "")
        if piece.spaced or not words:
            words.append(text)
        else:
            words[-1] += "·" + text
    for number, line in enumerate(wrapped(words, WIDTH - 4)):
        yield f"  {'>' if number == 0 else ' '} {line}"


def wrapped(words: Sequence[str], columns: int) -> Iterator[str]:
    """The words in lines of at most so many columns; a word that is longer is broken."""
    line, used = "", 0
    for word in words:
        if line and used + 1 + cells(word) > columns:
            yield line
            line, used = "", 0
        elif line:
            line, used = line + " ", used + 1
        for char in word:
            wide = cells(char)
            if used + wide > columns:
                yield line
                line, used = "", 0
            line, used = line + char, used + wide
    if line:
        yield line


def cells(text: str) -> int:
    """Columns that a terminal draws the text in."""
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )
