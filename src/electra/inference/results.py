"""What detection, scoring and prediction give: small values that print as text and show as tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from electra.display import html_table, text_table

Prediction = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectedToken:
    """One token of a text, where it stands, and how likely it was replaced."""

    token: str
    """The vocabulary entry, such as `##ing`; of a byte-level one its text, a space in front included."""
    start: int
    end: int
    """Its characters are `text[start:end]`."""
    probability: float
    flagged: bool


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Detection:
    """A text and its tokens, each with the probability that it was replaced."""

    text: str
    tokens: tuple[DetectedToken, ...]

    @property
    def flagged(self) -> tuple[DetectedToken, ...]:
        """The tokens that look replaced."""
        return tuple(token for token in self.tokens if token.flagged)

    def __str__(self) -> str:
        """`the chef [cooked|0.93] the meal`."""
        pieces = marked_pieces(self.text, self.tokens)
        return "".join(piece if p is None else f"[{piece}|{p:.2f}]" for piece, p in pieces)

    def __repr__(self) -> str:
        return f"Detection({str(self)!r})"

    def _repr_html_(self) -> str:
        rows = [(one.token, one.probability, "replaced?" if one.flagged else "") for one in self.tokens]
        return html_table(("token", "probability", ""), rows, notes=[str(self)])


def marked_pieces(text: str, tokens: Iterable[DetectedToken]) -> Iterator[tuple[str, float | None]]:
    """The text in order, cut so that each flagged token is a piece with its probability."""
    printable = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    end = 0
    for token in tokens:
        start = max(end, token.start)  # two tokens can come from one character
        if token.flagged and start < token.end:
            yield printable[end:start], None
            yield printable[start : token.end], token.probability
            end = token.end
    yield printable[end:], None


@dataclass(frozen=True, kw_only=True, slots=True)
class CorruptedToken:
    """One token of a corrupted text: what stood there, what stands there now, and how likely it looks replaced."""

    original: str
    token: str
    """The vocabulary entry that the discriminator reads."""
    gap: str
    """What stands in front of it: a space, or nothing."""
    piece: str
    """Its characters; of a token that was not replaced, as in the text."""
    masked: bool
    """The generator was asked for this token."""
    replaced: bool
    """The generator's sample is not the original."""
    probability: float
    """The discriminator's probability that it was replaced."""
    flagged: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Corruption:
    """A text and its tokens after the generator replaced some."""

    text: str
    tokens: tuple[CorruptedToken, ...]

    def __str__(self) -> str:
        """The corrupted text."""
        return "".join(token.gap + token.piece for token in self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScore:
    """One token of a text, where it stands, and the logarithm of its probability there."""

    token: str
    """The vocabulary entry, such as `##ing`; of a byte-level one its text, a space in front included."""
    start: int
    end: int
    """Its characters are `text[start:end]`."""
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TextScore:
    """A text, its tokens, and the sum of their scores: the higher, the likelier. An empty text has a score of 0."""

    text: str
    score: float
    tokens: tuple[TokenScore, ...]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Scores(Sequence[TextScore]):
    """The scores of texts, in their order."""

    texts: tuple[TextScore, ...]

    @overload
    def __getitem__(self, at: int) -> TextScore: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[TextScore]: ...
    def __getitem__(self, at: int | slice) -> TextScore | Sequence[TextScore]:
        return self.texts[at]

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        return text_table(*self._table())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        return ("text", "score", "tokens"), [(one.text, one.score, len(one.tokens)) for one in self.texts]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Predictions(Sequence[Prediction]):
    """One prediction a row, in the rows' order, each a dict as in `electra predict`'s JSON lines."""

    title: str
    """The task's."""
    rows: tuple[Prediction, ...]

    @overload
    def __getitem__(self, at: int) -> Prediction: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Prediction]: ...
    def __getitem__(self, at: int | slice) -> Prediction | Sequence[Prediction]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return text_table(*self._table())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> tuple[list[str], list[list[object]]]:
        """Probabilities of labels get a column each; lists of answers are left out."""
        rows = [_flat(row) for row in self.rows]
        header = list(dict.fromkeys(name for row in rows for name in row)) or [self.title]
        return header, [[row.get(name) for name in header] for row in rows]


def _flat(prediction: Prediction) -> dict[str, object]:
    """A prediction as named cells."""
    cells: dict[str, object] = {}
    for name, value in prediction.items():
        if name == "words":
            tagged = zip(value, prediction["tags"], strict=True)
            cells["tagged"] = " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in tagged)
        elif isinstance(value, dict):
            cells |= value
        elif name == "labels":
            cells[name] = ", ".join(value)
        elif not isinstance(value, list):
            cells[name] = value
    return cells
