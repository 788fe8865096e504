"""BERT's vocabulary files: one entry a line, and what text must go through to match them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from electra.errors import DataError
from electra.fsio import read_bytes
from electra.tokenizer.backends import SPECIALS

MAX_VOCAB_BYTES = 64 << 20
_MARKER = re.compile(r"\[[^\]]+\]")


def read_vocab(path: Path) -> list[str]:
    """The entries of a BERT vocab.txt, one a line; a file that cannot be a vocabulary is a DataError."""
    try:
        text = read_bytes(path, most=MAX_VOCAB_BYTES).decode()
    except UnicodeDecodeError as error:
        raise DataError(path, f"byte {error.start} is not valid UTF-8") from error
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    vocab = [line.removesuffix("\r") for line in text.split("\n")]
    if vocab and not vocab[-1]:
        vocab.pop()
    check_vocab(vocab, where=path)
    return vocab


def check_vocab(vocab: Sequence[str], *, where: object) -> None:
    seen: dict[str, int] = {}
    for line, token in enumerate(vocab, 1):
        if not token:
            raise DataError(where, f"line {line} is empty", fix="one entry a line")
        if token in seen:
            raise DataError(where, f"'{token}' stands twice, in lines {seen[token]} and {line}")
        seen[token] = line
    missing = [token for token in SPECIALS if token not in seen]
    if missing:
        raise DataError(where, f"the vocabulary lacks {', '.join(missing)}", fix=f"it needs {' '.join(SPECIALS)}")


def made_for(vocab: Sequence[str]) -> tuple[bool, bool]:
    """Whether a vocabulary was made of lower-cased text, and of text without accents: its entries tell."""
    entries = [entry for entry in vocab if not _MARKER.fullmatch(entry)]
    lowercase = not any(entry != entry.lower() for entry in entries)
    return lowercase, lowercase and not any(_accented(entry) for entry in entries)


def _accented(entry: str) -> bool:
    return not entry.isascii() and any(
        unicodedata.category(char) == "Mn" for char in unicodedata.normalize("NFD", entry)
    )
