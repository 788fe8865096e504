"""Which part of the training sources is held out: a share of the tokens, chosen by hash, within bounds.

Documents are held out whole. One that is long beside what is to be held out is taken in pieces, contiguous runs of
sentences, so that a few huge documents do not decide how much text is kept apart; only a sentence that is longer than a
piece is cut itself. A piece's hash follows from the document's text alone: neither the order of the sources nor the
number of workers matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from electra.errors import DataError
from electra.shards.units import Unit

Array = np.ndarray[Any, Any]
Outlines = Callable[[], Iterator[tuple[Unit, Array]]]
"""Units, whose tokens are not looked at, each with the boolean array of its documents that stay."""

LEAST_TOKENS = 16_384  # fewer give noisy figures: 15 % of these are scored
LEAST_SHARE = 0.1  # of a corpus that is too small for that
PIECES = 16  # that what is held out consists of, at least, where documents are long
PIECE_TOKENS = 512  # of a piece, at least
_FULL = 1 << 64
_CANDIDATES = 8  # times what is to be held out: enough to choose from, and little memory


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Pieces up to a hash."""

    last: int
    """The largest hash of a piece that is held out."""
    piece_tokens: int
    """Documents of twice as many tokens, or more, are taken in pieces of at least so many."""


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Parallel arrays, one entry a piece, in the unit's order."""

    hashes: Array
    documents: Array
    tokens: Array
    starts: Array
    """Position of a piece's first token in the unit."""


def choose_held_out(outlines: Outlines, *, share: float) -> HeldOut:
    """About `share` of the tokens, or, where that is too little to evaluate on, LEAST_TOKENS or LEAST_SHARE.

    Documents up to the share's hash are held out, the same ones when a corpus grows; more or fewer where their tokens
    are less than half or more than twice the share.
    """
    total = sum(int(document_tokens(unit)[keep].sum()) for unit, keep in outlines())
    least = min(LEAST_TOKENS, LEAST_SHARE * total)
    aim = max(share * total, least)
    piece_tokens = max(PIECE_TOKENS, int(aim) // PIECES)
    below = min(_FULL, max(1, int(_FULL * _CANDIDATES * aim / max(1, total))))
    hashes, tokens, count = _candidates(outlines, piece_tokens, below=below)
    if tokens.sum() < aim and below < _FULL:
        hashes, tokens, count = _candidates(outlines, piece_tokens, below=_FULL)
    if count < 2:
        reason = f"one document of {total:,} tokens cannot be split into training and held-out text"
        raise DataError("corpus", reason, fix="separate documents by blank lines, or give --held-out FILE")
    cumulative = np.cumsum(tokens)
    by_share = int(np.searchsorted(hashes, np.uint64(min(_FULL - 1, int(share * _FULL)))))
    fewest = int(np.searchsorted(cumulative, aim / 2 if share * total >= least else aim)) + 1
    most = int(np.searchsorted(cumulative, 2 * aim, side="right"))
    number = min(max(min(by_share, most), fewest), count - 1)
    return HeldOut(last=int(hashes[number - 1]), piece_tokens=piece_tokens)


def divide(unit: Unit, held_out: HeldOut) -> tuple[Unit, Array, Array]:
    """The unit with split documents as several, which of these are held out, and the number each had before.

    Of a split document every run of neighbouring pieces on one side is a document of its own, named by its first piece.
    """
    pieces = _cut(unit, held_out.piece_tokens)
    held = pieces.hashes <= np.uint64(held_out.last)
    begins = np.ones(len(held), np.bool_)
    begins[1:] = (pieces.documents[1:] != pieces.documents[:-1]) | (held[1:] != held[:-1])
    documents, starts = pieces.documents[begins], pieces.starts[begins]
    keys = unit.keys[documents]
    keys["id"] = pieces.hashes[begins]
    in_sentence = unit.sentence_tokens.astype(np.int64)
    sentences = np.union1d(np.cumsum(in_sentence) - in_sentence, starts)  # one that is longer than a piece may be cut
    divided = Unit(
        keys,
        np.diff(np.searchsorted(sentences, starts), append=len(sentences)),
        np.diff(sentences, append=in_sentence.sum()),
        unit.tokens,
    )
    return divided, held[begins], documents


def document_tokens(unit: Unit) -> Array:
    """Tokens of each document."""
    first = np.cumsum(unit.document_sentences, dtype=np.int64) - unit.document_sentences
    if not len(first):
        return np.zeros(0, np.int64)
    result: Array = np.add.reduceat(unit.sentence_tokens.astype(np.int64), first)
    return result


def _candidates(outlines: Outlines, piece_tokens: int, *, below: int) -> tuple[Array, Array, int]:
    """Hashes and tokens of the pieces whose hash is below `below`, by hash, and the number of all pieces."""
    hashes, tokens, count = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
    for unit, keep in outlines():
        pieces = _cut(unit, piece_tokens)
        stays = keep[pieces.documents]
        count += int(stays.sum())
        chosen = stays & (pieces.hashes <= np.uint64(below - 1))
        hashes.append(pieces.hashes[chosen])
        tokens.append(pieces.tokens[chosen])
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate(tokens)[order], count


def _cut(unit: Unit, piece_tokens: int) -> _Pieces:
    """Every document in pieces of `piece_tokens` to twice as many tokens, as even as its sentences allow."""
    in_sentence = unit.sentence_tokens.astype(np.int64)
    size = document_tokens(unit)
    owner = np.repeat(np.arange(len(size)), unit.document_sentences)
    starts = np.cumsum(in_sentence) - in_sentence
    long = np.flatnonzero(in_sentence > piece_tokens)  # text without full stops: cut between tokens
    if len(long):
        inside = [np.arange(starts[at], starts[at] + in_sentence[at], piece_tokens) for at in long]
        owner = np.concatenate([owner, *(np.full(len(some), owner[at]) for at, some in zip(long, inside, strict=True))])
        starts, order = np.unique(np.concatenate([starts, *inside]), return_index=True)
        owner = owner[order]
    begin = np.cumsum(size) - size
    parts = np.maximum(1, size // piece_tokens)
    number = (starts - begin[owner]) * parts[owner] // size[owner]
    begins = np.ones(len(owner), np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (number[1:] != number[:-1])
    at = np.flatnonzero(begins)
    return _Pieces(
        hashes=_hashes(unit.keys["id"][owner[at]], number[at]),
        documents=owner[at],
        tokens=np.diff(starts[at], append=size.sum()),
        starts=starts[at],
    )


def _hashes(documents: Array, numbers: Array) -> Array:
    """A document's first piece has its id; the others mix their number into it (`splitmix64`)."""
    x = documents + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where(numbers == 0, documents, x ^ (x >> np.uint64(31)))
