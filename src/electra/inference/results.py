"""What detection, scoring and prediction give: small values that print as text and show as tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from electra.display import html_table, text_table
from electra.tokenizer.codec import Tokenizer

Prediction = dict[str, Any]

_CHUNK_TEXTS = 1024  # tokenized together, on all cores, where all detections are read


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

    @property
    def marked(self) -> str:
        """`the chef [cooked|0.93] the meal`."""
        pieces = marked_pieces(self.text, self.tokens)
        return "".join(piece if p is None else f"[{piece}|{p:.2f}]" for piece, p in pieces)

    @property
    def highest(self) -> str:
        """Where no token looks replaced, the likeliest one: `the highest is 'cloud' with 0.19`; otherwise empty."""
        if self.flagged or not self.tokens:
            return ""
        likeliest = max(self.tokens, key=lambda token: token.probability)
        shown = self.text[likeliest.start : likeliest.end] or likeliest.token
        return f"the highest is {shown!r} with {likeliest.probability:.2f}"

    def __str__(self) -> str:
        """The text with its marks; where it has none, the likeliest token behind it."""
        return self.marked + (f" (no token is marked; {self.highest})" if self.highest else "")

    def __repr__(self) -> str:
        return f"Detection({str(self)!r})"

    def _repr_html_(self) -> str:
        rows = [(one.token, one.probability, "replaced?" if one.flagged else "") for one in self.tokens]
        return html_table(("token", "probability", ""), rows, notes=[str(self)])


@dataclass(frozen=True, kw_only=True, slots=True, repr=False, eq=False)
class Detections(Sequence[Detection]):
    """The detections of texts, in their order: arrays until one is read, which then makes its tokens."""

    texts: tuple[str, ...]
    found_T: NDArray[np.float32]
    """The probabilities of all texts' tokens, end to end."""
    ends_N: NDArray[np.int64]
    """Where each text's tokens end there."""
    tokenizer: Tokenizer
    threshold: float

    def probabilities(self, at: int) -> NDArray[np.float32]:
        """Of one text's tokens, without making them."""
        at = range(len(self.texts))[at]
        return self.found_T[self.ends_N[at - 1] if at else 0 : self.ends_N[at]]

    @overload
    def __getitem__(self, at: int) -> Detection: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Detection]: ...
    def __getitem__(self, at: int | slice) -> Detection | Sequence[Detection]:
        if isinstance(at, int):
            return self._made([range(len(self.texts))[at]])[0]
        return self._made(range(len(self.texts))[at])

    def __iter__(self) -> Iterator[Detection]:
        for first in range(0, len(self.texts), _CHUNK_TEXTS):
            yield from self._made(range(first, min(first + _CHUNK_TEXTS, len(self.texts))))

    def __len__(self) -> int:
        return len(self.texts)

    def _made(self, numbers: Sequence[int]) -> list[Detection]:
        encoded = self.tokenizer.encode_all_with_offsets([self.texts[number] for number in numbers])
        return [
            Detection(text=self.texts[number], tokens=self._tokens(number, ids, offsets))
            for number, (ids, offsets) in zip(numbers, encoded, strict=True)
        ]

    def _tokens(self, number: int, ids: list[int], offsets: list[tuple[int, int]]) -> tuple[DetectedToken, ...]:
        return tuple(
            DetectedToken(
                token=self.tokenizer.token(one),
                start=start,
                end=end,
                probability=probability,
                flagged=probability >= self.threshold,
            )
            for one, (start, end), probability in zip(ids, offsets, self.probabilities(number).tolist(), strict=True)
        )


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

    def __repr__(self) -> str:
        return text_table(*self._table())

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

    def __repr__(self) -> str:
        return text_table(*self._table())

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
