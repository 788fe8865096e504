"""The token ids of many texts in one array, without a Python object for each token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.word_cache import WordEncoder

CACHED_WORDS = 100_000  # about 20 MB a tokenizer
_FEW_TEXTS = 64
"""Fewer are not worth a cache: making one takes some milliseconds."""


class FlatIds(NamedTuple):
    """The ids of all texts end to end, and how many each text has."""

    ids: NDArray[np.int32]
    sizes: NDArray[np.int64]

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> FlatIds:
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        return FlatIds(np.fromiter(chain.from_iterable(texts), np.int32, int(sizes.sum())), sizes)

    def lists(self) -> list[list[int]]:
        """The ids of each text."""
        ids, ends = self.ids.tolist(), np.cumsum(self.sizes).tolist()
        return [ids[first:end] for first, end in zip([0, *ends], ends, strict=False)]


_CACHES: WeakKeyDictionary[Tokenizer, WordEncoder] = WeakKeyDictionary()


def encode_many(tokenizer: Tokenizer, texts: Sequence[str]) -> FlatIds:
    """The ids that `Tokenizer.encode` gives for each text.

    Words of printable ASCII come from a cache: nothing in WordPiece looks across their borders. All other texts, and
    all texts of a byte-level tokenizer, go through `tokenizers` together, on all cores.
    """
    if len(texts) < _FEW_TEXTS or tokenizer.kind == "bytes":
        return FlatIds.of(_by_backend(tokenizer, texts))
    plain = [text.isascii() and text.isprintable() for text in texts]
    others = iter(_by_backend(tokenizer, [text for text, is_plain in zip(texts, plain, strict=True) if not is_plain]))
    cached = _cache_of(tokenizer).encode
    encoded = [
        cached(text) if is_plain else np.array(next(others), "<i4").tobytes()
        for text, is_plain in zip(texts, plain, strict=True)
    ]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded)) // 4
    return FlatIds(np.frombuffer(b"".join(encoded), "<i4").astype(np.int32, copy=False), sizes)


def _by_backend(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [tokenizer.encode(text) for text in texts] if len(texts) < 2 else tokenizer.encode_batch(texts)


def _cache_of(tokenizer: Tokenizer) -> WordEncoder:
    """The tokenizer's own; it goes with it."""
    if tokenizer not in _CACHES:
        _CACHES[tokenizer] = WordEncoder(tokenizer, token_bytes=4, limit=CACHED_WORDS)
    return _CACHES[tokenizer]
