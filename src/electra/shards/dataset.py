"""Prepared data, opened: memory-mapped tokens and where sentences and documents begin."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.errors import DataError
from electra.shards.format import (
    DOCUMENT,
    HELD_OUT,
    SENTENCE,
    TOKENIZER,
    TRAIN,
    check_files,
    read_manifest,
    token_type,
)
from electra.tokenizer.codec import Tokenizer

COUNTED = 1 << 22  # tokens that are counted at once, so that a large corpus needs little memory
SPREAD = 256  # pieces, at least, that a part of the text is counted in


class Split:
    """The documents of one split as one long sequence of tokens; shards are an implementation detail."""

    def __init__(self, folder: Path, record: dict[str, Any], *, dtype: np.dtype[Any]) -> None:
        self._shards = record["shards"]
        self._names = [str(folder / shard["name"]) for shard in self._shards]
        self._dtype = dtype
        self._starts = np.cumsum([0, *(shard["tokens"] for shard in self._shards)], dtype=np.int64)
        self.n_tokens = int(self._starts[-1])
        self.n_sentences = sum(shard["sentences"] for shard in self._shards)
        self.n_documents = sum(shard["documents"] for shard in self._shards)

    @cached_property
    def _tokens(self) -> list[NDArray[Any]]:
        return [np.memmap(f"{name}.tokens", self._dtype, "r").view(np.ndarray) for name in self._names]

    @cached_property
    def _documents(self) -> list[NDArray[Any]]:
        return [np.fromfile(f"{name}.documents", DOCUMENT) for name in self._names]

    @cached_property
    def sentence_starts(self) -> NDArray[np.int64]:
        """Position of each sentence's first token, and at the end the number of tokens."""
        parts = [np.fromfile(f"{name}.sentences", SENTENCE) for name in self._names]
        return _offsets(parts, [shard["tokens"] for shard in self._shards])

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """Number of each document's first sentence, and at the end the number of sentences."""
        return _offsets([part["first"] for part in self._documents], [shard["sentences"] for shard in self._shards])

    @cached_property
    def document_ids(self) -> NDArray[np.uint64]:
        """A name for each document's text, the same wherever it stands."""
        return np.concatenate([np.empty(0, np.uint64), *(part["id"] for part in self._documents)]).astype(np.uint64)

    def counts(self, vocab_size: int, *, most: int | None = None) -> NDArray[np.int64]:
        """How often each token of the vocabulary occurs; with `most`, in about so many tokens from all over."""
        size = COUNTED if most is None else max(1, min(COUNTED, most // SPREAD))
        stride = size if most is None else max(size, -(-self.n_tokens * size // most))
        result = np.zeros(vocab_size, np.int64)
        for name, tokens in zip(self._names, self._tokens, strict=True):
            for start in range(0, len(tokens), stride):
                found = np.bincount(tokens[start : start + size], minlength=vocab_size)
                if len(found) > vocab_size:
                    reason = f"holds token {len(found) - 1} of a vocabulary of {vocab_size}"
                    raise DataError(f"{name}.tokens", reason, fix="prepare the data again")
                result += found
        return result

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Token ids at the given positions, in their shape."""
        positions = np.asarray(positions, np.int64)
        if len(self._tokens) == 1:
            return self._tokens[0][positions].astype(np.int32)
        result = np.empty(positions.shape, np.int32)
        shard_of = np.searchsorted(self._starts, positions, side="right") - 1
        for shard in np.unique(shard_of):
            mine = shard_of == shard
            result[mine] = self._tokens[shard][positions[mine] - self._starts[shard]]
        return result

    def slice(self, start: int, stop: int) -> NDArray[np.int32]:
        """Token ids from `start` up to, not including, `stop`."""
        parts = [np.empty(0, np.int32)]
        for first, tokens in zip(self._starts, self._tokens, strict=False):
            low, high = max(0, start - first), min(len(tokens), stop - first)
            if low < high:
                parts.append(tokens[low:high].astype(np.int32))
        return np.concatenate(parts) if len(parts) > 2 else parts[-1]


class Prepared:
    """A folder that `electra prepare` finished."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.vocab_size = int(manifest["tokenizer"]["vocab_size"])
        self.fingerprint = str(manifest["tokenizer"]["fingerprint"])
        dtype = token_type(self.vocab_size)
        self.train = Split(folder / TRAIN, manifest["splits"][TRAIN], dtype=dtype)
        self.held_out = Split(folder / HELD_OUT, manifest["splits"][HELD_OUT], dtype=dtype)

    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.folder / TOKENIZER)
        if tokenizer.fingerprint != self.fingerprint:
            raise DataError(self.folder / TOKENIZER, "is not the tokenizer that the shards were made with")
        return tokenizer


def open_data(folder: Path, *, verify: bool = False) -> Prepared:
    """The prepared data of a folder; sizes are always checked, the sha256 of every file with `verify`."""
    manifest = read_manifest(folder)
    check_files(folder, manifest, verify=verify)
    _check_counts(folder, manifest)
    return Prepared(folder, manifest)


def _check_counts(folder: Path, manifest: dict[str, Any]) -> None:
    """The counts in the manifest must fit the files: arrays are read by them."""
    sizes = {file["path"]: file["bytes"] for file in manifest["files"]}
    width = token_type(int(manifest["tokenizer"]["vocab_size"])).itemsize
    widths = {"tokens": width, "sentences": SENTENCE.itemsize, "documents": DOCUMENT.itemsize}
    for split in (TRAIN, HELD_OUT):
        for shard in manifest["splits"][split]["shards"]:
            for part, size in widths.items():
                path = f"{split}/{shard['name']}.{part}"
                if sizes.get(path) != shard[part] * size:
                    raise DataError(folder / path, "does not fit the counts in data.json", fix="prepare the data again")


def _offsets(parts: list[NDArray[Any]], sizes: list[int]) -> NDArray[np.int64]:
    """Starts within shards into starts overall, with the total at the end."""
    result = np.empty(sum(map(len, parts)) + 1, np.int64)
    at, before = 0, 0
    for part, size in zip(parts, sizes, strict=True):
        np.add(part, before, out=result[at : at + len(part)], casting="unsafe")
        at, before = at + len(part), before + size
    result[at] = before
    return result
