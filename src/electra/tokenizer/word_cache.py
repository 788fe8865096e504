"""Token ids of cleaned text, fast: every distinct word goes through the tokenizer once, then a dictionary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from electra.tokenizer.backends import MAX_WORD_CHARS, as_byte_characters, inside, split_pieces, word_pattern
from electra.tokenizer.codec import Tokenizer

CACHED_WORDS = 1_000_000
_CACHED_CHARS = 64


class Encoder(Protocol):
    """Cleaned sentences to ids as little-endian bytes, equal to `Tokenizer.encode`."""

    token_bytes: int

    def encode(self, sentence: str) -> bytes: ...

    def unknown_characters(self, sentences: Sequence[str], encoded: Sequence[bytes]) -> int:
        """How many characters of the sentences have become [UNK], given what `encode` made of each."""


def make_encoder(tokenizer: Tokenizer, *, token_bytes: int, limit: int = CACHED_WORDS) -> Encoder:
    """The encoder for a kind of tokenizer; it keeps at most `limit` words."""
    kind = PieceEncoder if tokenizer.kind == "bytes" else WordEncoder
    return kind(tokenizer, token_bytes=token_bytes, limit=limit)


class _Cache(dict[str, bytes]):
    """Ids by word, emptied when it is full."""

    def __init__(self, tokenizer: Tokenizer, *, token_bytes: int, limit: int = CACHED_WORDS) -> None:
        super().__init__()
        self._bytes = [number.to_bytes(token_bytes, "little") for number in range(tokenizer.vocab_size)]
        self._tokenize = tokenizer.backend.model.tokenize
        self._limit = limit
        self.token_bytes = token_bytes

    def __missing__(self, word: str) -> bytes:
        if len(self) >= self._limit:
            self.clear()
        ids = self._ids(word)
        if len(word) <= _CACHED_CHARS:
            self[word] = ids
        return ids

    def _ids(self, word: str) -> bytes:
        raise NotImplementedError


class WordEncoder(_Cache):
    """The encoder for WordPiece.

    Exact because nothing in WordPiece tokenization looks across a space, and in plain ASCII nothing looks across
    the border of letters and punctuation either. Text frequencies make it several times faster.
    """

    def __init__(self, tokenizer: Tokenizer, *, token_bytes: int, limit: int = CACHED_WORDS) -> None:
        super().__init__(tokenizer, token_bytes=token_bytes, limit=limit)
        self._lowercase = tokenizer.lowercase
        self._encode = tokenizer.backend.encode
        letters = "[A-Za-z0-9]+|[^A-Za-z0-9]"
        if tokenizer.kind == "wordpiece":
            letters = word_pattern(char for char in inside(tokenizer.vocab) if char.isascii())
        self._ascii_parts = re.compile(letters).findall
        self._unknown_id, self._unknown = tokenizer.unk_id, self._bytes[tokenizer.unk_id]
        self._unknown_words: dict[str, int] = {}

    def encode(self, sentence: str) -> bytes:
        return b"".join(map(self.__getitem__, sentence.split(" ")))

    def unknown_characters(self, sentences: Sequence[str], encoded: Sequence[bytes]) -> int:
        unknown = self._unknown
        if unknown not in b"".join(encoded):  # true of most documents, and fast
            return 0
        pairs = zip(sentences, encoded, strict=True)
        words = [word for sentence, ids in pairs if unknown in ids for word in sentence.split(" ")]
        return sum([self._unknown_in(word) for word in words if unknown in self[word]])

    def _unknown_in(self, word: str) -> int:
        count = self._unknown_words.get(word)
        if count is None:
            found = self._encode(word, add_special_tokens=False)
            spans = zip(found.ids, found.offsets, strict=True)
            count = sum(end - start for number, (start, end) in spans if number == self._unknown_id)
            if len(self._unknown_words) < self._limit:
                self._unknown_words[word] = count
        return count

    def _ids(self, word: str) -> bytes:
        if word.isascii() and len(word) <= MAX_WORD_CHARS:
            return self._ascii(word)
        return b"".join([self._bytes[number] for number in self._encode(word, add_special_tokens=False).ids])

    def _ascii(self, word: str) -> bytes:
        if self._lowercase and (lower := word.lower()) != word:
            return self[lower]
        parts = self._ascii_parts(word)
        if len(parts) != 1:
            return b"".join(map(self.__getitem__, parts))
        return b"".join([self._bytes[token.id] for token in self._tokenize(word)])


class PieceEncoder(_Cache):
    """The encoder for byte-level BPE, which merges nothing across the pieces that text is split into."""

    def __init__(self, tokenizer: Tokenizer, *, token_bytes: int, limit: int = CACHED_WORDS) -> None:
        super().__init__(tokenizer, token_bytes=token_bytes, limit=limit)
        normalizer = tokenizer.backend.normalizer
        assert normalizer is not None, "the kind has one"
        self._fold = normalizer.normalize_str if tokenizer.lowercase or tokenizer.strip_accents else None

    def encode(self, sentence: str) -> bytes:
        if self._fold is not None:  # cleaned text is in NFC already
            sentence = self._fold(sentence)
        return b"".join(map(self.__getitem__, split_pieces(sentence)))

    def unknown_characters(self, sentences: Sequence[str], encoded: Sequence[bytes]) -> int:
        return 0

    def _ids(self, word: str) -> bytes:
        return b"".join([self._bytes[token.id] for token in self._tokenize(as_byte_characters(word))])
