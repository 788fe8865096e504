"""A task's rows before tokenizing, its sequences after, and a head's outputs for them: what readers, heads and the
trainer exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["classify", "multilabel", "regress", "tag", "span", "pairs"]
Label = str | float | tuple[str, ...] | None
HeadOutputs = dict[str, NDArray[np.generic] | list[NDArray[np.generic]]]
"""What a task's head computes for N sequences, by name, in the order of the sequences.

classify, multilabel and regress: `scores` (N, C). tag: `scores`, a list of (length, C).
span: `starts` and `start_at` (N, K), `ends` and `end_at` (N, K, K), `null` (N,), K the beam.
pairs: `vectors` (N, D), D the width.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One text, or a pair of them, with its label: a class, a number, several classes, or None where unknown."""

    id: str
    text: str
    pair: str | None = None
    label: Label = None
    negative: str | None = None
    """Of a pair: a text that looks like the second one and is not (a hard negative)."""
    place: str = field(default="", compare=False)
    """Where it stands in its file, `line 12`; empty where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence of a tagging task: its words, and their tags where known."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question about a passage; `answers` are (text, first character), none for an unanswerable one."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Token ids ready for the network, one entry a sequence."""

    ids: list[list[int]]
    """Whole sequences, [CLS] and [SEP] included, no padding."""
    a_lengths: list[int]
    """Tokens of the first segment, its [SEP] included; the rest is the second segment."""
    targets: NDArray[np.generic] | list[list[int]] | None = None
    """classify: (N,) int64; multilabel: (N, C) float32; regress: (N,) float32 as the loss wants it;
    tag: one tag number a token, -1 where the token is not the first piece of a word;
    span: (N, 3) int64 start token, end token (both 0 where absent), 1 for an unanswerable question;
    pairs: (N,) int64 the number of each text, equal ones having equal numbers and a missing one -1, or where rows have
    graded scores (N,) float32 the score of each text's row."""
    rows: NDArray[np.int64] | None = None
    """The row, sentence or question that each sequence is made of; None: each of its own."""
    cut: int = 0
    """Sequences that lost tokens because they were too long."""
    group: int = 1
    """Sequences in a row that are trained on together: the two texts of a pair, three with a hard negative."""

    @property
    def count(self) -> int:
        """What a batch counts: sequences, or groups of them."""
        return len(self.ids) // self.group
