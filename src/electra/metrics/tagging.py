"""Chunks of tagged sentences, and how many of them were found exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from electra.metrics.classification import ClassScore, class_score

Chunk = tuple[str, int, int]
"""Type, first word, and the word after the last."""

_BEGINS = frozenset("BSU")
_ENDS = frozenset("ESLU")
_PREFIXES = frozenset("BIESLU")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkScores:
    """Exact chunks: all together, and those of each type, in alphabetical order."""

    micro: ClassScore
    by_type: dict[str, ClassScore] = field(default_factory=dict)


def chunks(tags: Sequence[str]) -> set[Chunk]:
    """The chunks of a sentence tagged as IOB1, IOB2 or BIOES (also BILOU, or bare types in runs).

    One rule reads them all, and sequences that follow none of them, as the CoNLL scorer does: a chunk begins at B or
    S, after E or S, where the type changes and after O; it goes on until the next begins, or O.
    """
    found: set[Chunk] = set()
    start, kind, closed = 0, "", True
    for place, tag in enumerate(tags):
        prefix, name = _split(tag)
        goes_on = not closed and prefix not in _BEGINS and prefix != "O" and name == kind
        if not goes_on:
            if not closed:
                found.add((kind, start, place))
            start, kind = place, name
        closed = prefix == "O"
        if prefix in _ENDS:
            found.add((kind, start, place + 1))
            closed = True
    if not closed:
        found.add((kind, start, len(tags)))
    return found


def chunk_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> ChunkScores:
    """Precision, recall and F1 of exact chunks over all sentences, together and by type."""
    if len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} sentences predicted, {len(labels)} labelled")
    guessed: set[tuple[int, Chunk]] = set()
    gold: set[tuple[int, Chunk]] = set()
    for number, (predicted, real) in enumerate(zip(predictions, labels, strict=True)):
        if len(predicted) != len(real):
            raise ValueError(f"sentence {number}: {len(predicted)} tags predicted, {len(real)} labelled")
        guessed |= {(number, chunk) for chunk in chunks(predicted)}
        gold |= {(number, chunk) for chunk in chunks(real)}
    types = sorted({chunk[0] for _, chunk in guessed | gold})
    by_type = {
        name: _score({c for c in guessed if c[1][0] == name}, {c for c in gold if c[1][0] == name}) for name in types
    }
    return ChunkScores(micro=_score(guessed, gold), by_type=by_type)


def tag_accuracy(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """Share of words with the right tag; 0.0 of none."""
    pairs = [
        (guess, real)
        for predicted, gold in zip(predictions, labels, strict=True)
        for guess, real in zip(predicted, gold, strict=True)
    ]
    return sum(guess == real for guess, real in pairs) / len(pairs) if pairs else 0.0


def _score(guessed: set[tuple[int, Chunk]], gold: set[tuple[int, Chunk]]) -> ClassScore:
    return class_score(len(guessed & gold), len(guessed), len(gold))


def _split(tag: str) -> tuple[str, str]:
    """Prefix and type; a tag without a prefix is a type whose runs are chunks."""
    if tag == "O":
        return "O", ""
    head, dash, name = tag.partition("-")
    if head in _PREFIXES and (dash or not name):
        return head, name
    return "I", tag
