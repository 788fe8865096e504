"""What an inspection found, as plain values that a terminal and a page can show."""

from __future__ import annotations

from dataclasses import dataclass

EDGES = (8, 16, 32, 64, 128, 256, 512)
"""Upper ends of the length classes, in tokens; one open class follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much text there is and how much of it was looked at."""

    files: int
    files_read: int
    stored_bytes: int
    sample_bytes: int
    """Text that was measured."""
    text_bytes: int
    """All text; an estimate unless `whole`."""
    whole: bool
    """Everything was measured."""
    left_out: dict[str, int]
    """Files that are not read, by the end of their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long documents or sentences are, in tokens."""

    count: int
    median: int
    longest: int
    shares: tuple[float, ...]
    """Share of the documents or sentences in each class of EDGES, and in the open one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """How finely the lines that are mainly in one script are cut."""

    script: str
    lines: int
    spaced: bool
    """Whether the script puts spaces between words."""
    per_unit: float
    """Tokens a word, or tokens a character where words are not spaced."""
    unknown: float
    """Share of the characters that became [UNK]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """The vocabulary that the text was cut with."""

    given: bool
    """A file of the user's; otherwise trained on the text that was measured."""
    kind: str
    entries: int
    occurring: int
    """Entries that occur in the text."""
    whole_words: float | None
    """Share of the words that are one token, punctuation around them aside; None where most lines have no spaces."""
    unknown: float
    """Share of the characters that became [UNK]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsAt:
    """What becomes of the tokens at one sequence length."""

    length: int
    rows: int
    kept: float
    """Share of the training tokens that enter a row."""
    padding: float
    """Share of the rows' positions that are padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Characters that one or more tokens stand for."""

    text: str
    spaced: bool
    """Whether white space stands before it."""
    tokens: int = 1
    """More than one where bytes of one character are tokens of their own."""
    unknown: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What the text holds and what `prepare` would make of it."""

    names: tuple[str, ...]
    extent: Extent
    scripts: dict[str, float]
    """Share of the letters, the largest first."""
    languages: dict[str, float]
    """Share of the characters, the largest first; a guess."""
    unsure: float
    """Share of the characters whose language was not guessed."""
    too_short: int
    repeated: int
    training: dict[str, int]
    """Documents, sentences and tokens."""
    held_out: dict[str, int]
    document_lengths: Lengths
    sentence_lengths: Lengths
    vocabulary: Vocabulary
    pieces: tuple[Pieces, ...]
    lines: tuple[tuple[Piece, ...], ...]
    """Some lines of the text, cut into tokens."""
    rows: tuple[RowsAt, ...]
    warnings: tuple[str, ...]
    """What to know of the rows at the default length."""
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens of all the text; an estimate unless `extent.whole`."""
        measured = self.training["tokens"] + self.held_out["tokens"]
        return measured if self.extent.whole else round(measured * self.extent.text_bytes / self.extent.sample_bytes)
