"""One block of text, tokenized: written whole or not at all, and joined into shards at the end."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.corpus.blocks import Block
from electra.corpus.documents import Tally, documents
from electra.corpus.sentences import split_sentences
from electra.corpus.text import KEY_BYTES, content_key
from electra.fsio import write_atomic
from electra.shards.options import PrepareOptions
from electra.tokenizer.word_cache import WordEncoder

_VERSION = 1
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
    tally: dict[str, int]

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


def make_unit(block: Block, path: Path, *, key: str, encoder: WordEncoder, options: PrepareOptions) -> Header:
    """Clean, split and tokenize a block, and commit the result."""
    tally = Tally()
    keys: list[bytes] = []
    document_sentences: list[int] = []
    sentence_tokens: list[int] = []
    tokens: list[bytes] = []
    encode, width = encoder.encode, encoder.token_bytes
    for lines in documents(block, text_column=options.text_column, tally=tally):
        name = content_key(lines) if sum(map(len, lines)) >= options.min_chars else None
        sentences = [] if name is None else [s for line in lines for s in _sentences(line, options)]
        encoded = [ids for sentence in sentences if (ids := encode(sentence))]
        if name is None or not encoded:
            tally.short += 1
            continue
        keys.append(name)
        document_sentences.append(len(encoded))
        sentence_tokens.extend([len(ids) // width for ids in encoded])
        tokens += encoded
    header = Header(
        key=key,
        documents=len(keys),
        sentences=len(sentence_tokens),
        tokens=sum(sentence_tokens),
        token_bytes=width,
        text_bytes=len(block.payload),
        tally=asdict(tally),
    )
    counts = np.array(document_sentences, COUNT).tobytes(), np.array(sentence_tokens, COUNT).tobytes()
    head = json.dumps(asdict(header)).encode() + b"\n"
    write_atomic(path, b"".join([head, *keys, *counts, *tokens]))
    return header


def _sentences(line: str, options: PrepareOptions) -> list[str]:
    return split_sentences(line) if options.split_sentences else [line]


def read_header(path: Path) -> Header | None:
    """The header of a finished unit; None where there is no whole one."""
    try:
        with open(path, "rb") as file:
            first = file.readline(1 << 16)
            header = Header(**json.loads(first))
            whole = path.stat().st_size == len(first) + header.body_bytes
    except (OSError, ValueError, TypeError):
        return None
    return header if whole else None


def read_keys(path: Path, header: Header) -> np.ndarray[Any, Any]:
    with open(path, "rb") as file:
        file.readline()
        return np.fromfile(file, KEY, header.documents)


def read_unit(path: Path, header: Header) -> Unit:
    with open(path, "rb") as file:
        file.readline()
        return Unit(
            np.fromfile(file, KEY, header.documents),
            np.fromfile(file, COUNT, header.documents),
            np.fromfile(file, COUNT, header.sentences),
            np.fromfile(file, f"<u{header.token_bytes}", header.tokens),
        )
