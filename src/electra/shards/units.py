"""One block of text, tokenized: written whole or not at all, and joined into shards at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.corpus.blocks import Block
from electra.corpus.documents import Tally, documents
from electra.corpus.sentences import split_sentences
from electra.corpus.text import KEY_BYTES, content_key
from electra.errors import DataError
from electra.fsio import open_file, write_atomic
from electra.jsontext import parse_json
from electra.records import read_record
from electra.shards.format import token_type
from electra.shards.options import PrepareOptions
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.word_cache import CACHED_WORDS, make_encoder

_VERSION = 2
KEY = np.dtype([("id", "<u8"), ("rest", "<u8")])
COUNT = np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a unit's file."""

    key: str
    documents: int
    sentences: int
    tokens: int
    token_bytes: int
    text_bytes: int
    characters: int
    """Of the documents, spaces included: to leave them out would take 3 % of the time."""
    unknown_characters: int
    """Those of them that have become [UNK]."""
    tally: dict[str, int]

    def __post_init__(self) -> None:
        if min(self.documents, self.sentences, self.tokens) < 0 or self.tally.keys() != asdict(Tally()).keys():
            raise ValueError("is not the header of a unit")

    @property
    def body_bytes(self) -> int:
        return self.documents * (KEY_BYTES + 4) + self.sentences * 4 + self.tokens * self.token_bytes


@dataclass(frozen=True, slots=True)
class Unit:
    """Parallel arrays: a key and a number of sentences a document, a number of tokens a sentence, the tokens."""

    keys: np.ndarray[Any, Any]
    document_sentences: np.ndarray[Any, Any]
    sentence_tokens: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]


def unit_path(work: Path, index: int) -> Path:
    return work / "units" / f"{index:07d}.unit"


def unit_key(block: Block, *, options: PrepareOptions, fingerprint: str) -> str:
    """sha256 of everything that decides a unit's content: one with another key is made again."""
    about = [_VERSION, fingerprint, options.text_column, options.split_sentences, options.min_chars, block.kind]
    digest = hashlib.sha256(json.dumps(about).encode())
    digest.update(block.payload)
    return digest.hexdigest()


class UnitMaker:
    """Blocks to units, by one process: what it learns about words helps with the next block."""

    def __init__(self, tokenizer: Tokenizer, options: PrepareOptions, *, cached_words: int = CACHED_WORDS) -> None:
        self._options, self._spaced = options, tokenizer.tokens_hold_spaces
        self._width = token_type(tokenizer.vocab_size).itemsize
        self._encoder = make_encoder(tokenizer, token_bytes=self._width, limit=cached_words)

    def make(self, block: Block, path: Path, *, key: str) -> Header:
        """Clean, split and tokenize a block, and commit the result."""
        tally = Tally()
        keys: list[bytes] = []
        document_sentences: list[int] = []
        characters = unknown = 0
        sentence_tokens: list[int] = []
        tokens: list[bytes] = []
        encode, width = self._encoder.encode, self._width
        for lines in documents(block, text_column=self._options.text_column, tally=tally):
            size = sum(map(len, lines))
            name = content_key(lines) if size >= self._options.min_chars else None
            sentences = [] if name is None else [s for line in lines for s in self._sentences(line)]
            every = list(map(encode, sentences))
            encoded = [ids for ids in every if ids]
            if name is None or not encoded:
                tally.short += 1
                continue
            keys.append(name)
            document_sentences.append(len(encoded))
            sentence_tokens.extend([len(ids) // width for ids in encoded])
            tokens += encoded
            characters += size
            unknown += self._encoder.unknown_characters(sentences, every)
        header = Header(
            key=key,
            documents=len(keys),
            sentences=len(sentence_tokens),
            tokens=sum(sentence_tokens),
            token_bytes=width,
            text_bytes=len(block.payload),
            characters=characters,
            unknown_characters=unknown,
            tally=asdict(tally),
        )
        counts = np.array(document_sentences, COUNT).tobytes(), np.array(sentence_tokens, COUNT).tobytes()
        head = json.dumps(asdict(header)).encode() + b"\n"
        write_atomic(path, b"".join([head, *keys, *counts, *tokens]))
        return header

    def _sentences(self, line: str) -> list[str]:
        sentences = split_sentences(line) if self._options.split_sentences else [line]
        return with_spaces(line, sentences) if self._spaced else sentences


def with_spaces(line: str, sentences: Sequence[str]) -> list[str]:
    """The sentences of a line, each with the space that stands before it in the line."""
    spaced, end = [], 0
    for sentence in sentences:
        start = line.find(sentence, end)
        spaced.append(" " + sentence if start > end else sentence)
        end = start + len(sentence)
    return spaced


def read_header(path: Path) -> Header | None:
    """The header of a finished unit; None where there is no whole one."""
    try:
        with open_file(path) as file:
            first = file.readline(1 << 16)
            header = read_record(Header, parse_json(first, where=path), where=path)
            whole = path.stat().st_size == len(first) + header.body_bytes
    except (OSError, DataError):
        return None
    return header if whole else None


def read_keys(path: Path, header: Header) -> np.ndarray[Any, Any]:
    with open(path, "rb") as file:
        file.readline()
        return np.fromfile(file, KEY, header.documents)


def read_unit(path: Path, header: Header, *, outline: bool = False) -> Unit:
    """A finished unit; only its `outline`, without tokens, where those are not looked at."""
    with open(path, "rb") as file:
        file.readline()
        return Unit(
            np.fromfile(file, KEY, header.documents),
            np.fromfile(file, COUNT, header.documents),
            np.fromfile(file, COUNT, header.sentences),
            np.fromfile(file, f"<u{header.token_bytes}", 0 if outline else header.tokens),
        )
