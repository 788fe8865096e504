"""Documents by their sentence lengths alone, which is all that a layout reads: ordinary text and awkward kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sizes = list[list[int]]
"""Tokens of each sentence of each document."""
FORMER_LIMIT = 1000
"""Characters after which a sentence was cut in version 0.2 and before."""


class Lengths:
    """Documents of which only the lengths are known, as a layout reads prepared data; every token is `TOKEN`."""

    TOKEN = 10

    def __init__(self, sizes: Sizes) -> None:
        flat = [size for document in sizes for size in document]
        self.sentence_starts = np.cumsum([0, *flat], dtype=np.int64)
        self.document_starts = np.cumsum([0, *map(len, sizes)], dtype=np.int64)
        self.document_ids = np.arange(len(sizes), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.full(positions.shape, self.TOKEN, np.int32)


@dataclass(frozen=True, slots=True)
class Made:
    """A made-up corpus."""

    sizes: Callable[[np.random.Generator], Sizes]
    characters: float = 4.5
    """Of a token, on average."""
    one_row: bool = False
    """Most documents fit into one row, so that every epoch cuts them alike: not at all."""

    def documents(self) -> Sizes:
        return self.sizes(np.random.default_rng(0))

    def as_formerly_cut(self) -> Sizes:
        """The same with long sentences cut as version 0.2 and before did it."""
        most = int(FORMER_LIMIT / self.characters)

        def parts(size: int) -> list[int]:
            return [*[most] * (size // most), *([size % most] if size % most else [])]

        return [[part for size in document for part in parts(size)] for document in self.documents()]


def _sentences(random: np.random.Generator, count: int, mean: float) -> list[int]:
    sizes: list[int] = (1 + random.poisson(random.gamma(3, mean / 3, count))).tolist()
    return sizes


def _texts(mean: float, *, documents: int, sentences: int) -> Callable[[np.random.Generator], Sizes]:
    def make(random: np.random.Generator) -> Sizes:
        return [_sentences(random, int(count), mean) for count in random.geometric(1 / sentences, documents)]

    return make


def _lines(least: int, most: int, *, documents: int) -> Callable[[np.random.Generator], Sizes]:
    """Documents of one line without a sentence end."""
    return lambda random: [[int(size)] for size in random.integers(least, most, documents)]


def _lists(random: np.random.Generator) -> Sizes:
    """Short items, some long ones among them."""
    return [random.choice([2, 3, 4, 9, 60], int(count)).tolist() for count in random.integers(1, 400, 120)]


def _mixed(random: np.random.Generator) -> Sizes:
    """Ordinary sentences beside lines in a script without full stops."""
    return [[n for _ in range(9) for n in (*_sentences(random, 4, 20), *_sentences(random, 1, 300))] for _ in range(60)]


CORPORA: dict[str, Made] = {
    "ordinary English": Made(_texts(27, documents=150, sentences=120)),
    "short articles": Made(_texts(18, documents=1500, sentences=12)),
    "English without punctuation": Made(_lines(300, 6000, documents=100)),
    "Chinese with commas only": Made(_lines(300, 12_000, documents=60), characters=1.0),
    "one huge line": Made(lambda random: [[400_000]]),
    "tiny lines": Made(_texts(4, documents=200, sentences=300)),
    "lists": Made(_lists),
    "code": Made(_texts(11, documents=200, sentences=150)),
    "mixed scripts": Made(_mixed),
    "tiny documents": Made(_texts(6, documents=2500, sentences=2), one_row=True),
    "documents of one token": Made(lambda random: [[1]] * 500, one_row=True),
}
