"""Prepared data, opened: memory-mapped tokens and where sentences and documents begin."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.errors import DataError
from electra.manifest import Manifest
from electra.shards.format import (
    DOCUMENT,
    HELD_OUT,
    SENTENCE,
    TOKENIZER,
    TRAIN,
    read_manifest,
    sums_of,
    token_type,
)
from electra.shards.verification import verify_once
from electra.tokenizer.codec import Tokenizer

COUNTED = 1 << 22  # tokens that are counted at once, so that a large corpus needs little memory
SPREAD = 256  # pieces, at least, that a part of the text is counted in


class Split:
    """The documents of one split as one long sequence of tokens; shards are an implementation detail.

    Tokens outside the vocabulary and positions outside a shard are always refused: they would be read as other text.
    """

    def __init__(self, folder: Path, record: dict[str, Any], *, dtype: np.dtype[Any], vocab_size: int) -> None:
        self._vocab_size = vocab_size
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
        return self._offsets("sentences", parts, [shard["tokens"] for shard in self._shards])

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """Number of each document's first sentence, and at the end the number of sentences."""
        firsts = [part["first"] for part in self._documents]
        return self._offsets("documents", firsts, [shard["sentences"] for shard in self._shards])

    @cached_property
    def document_ids(self) -> NDArray[np.uint64]:
        """A name for each document's text, the same wherever it stands."""
        return np.concatenate([np.empty(0, np.uint64), *(part["id"] for part in self._documents)]).astype(np.uint64)

    def counts(self, *, most: int | None = None) -> NDArray[np.int64]:
        """How often each token of the vocabulary occurs; with `most`, in about so many tokens from all over."""
        size = COUNTED if most is None else max(1, min(COUNTED, most // SPREAD))
        stride = size if most is None else max(size, -(-self.n_tokens * size // most))
        result = np.zeros(self._vocab_size, np.int64)
        for shard, tokens in enumerate(self._tokens):
            for start in range(0, len(tokens), stride):
                result += np.bincount(self._known(shard, tokens[start : start + size]), minlength=self._vocab_size)
        return result

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Token ids at the given positions, in their shape."""
        positions = np.asarray(positions, np.int64)
        if len(self._tokens) == 1:
            return self._known(0, self._tokens[0][positions]).astype(np.int32)
        result = np.empty(positions.shape, np.int32)
        shard_of = np.searchsorted(self._starts, positions, side="right") - 1
        for shard in np.unique(shard_of):
            mine = shard_of == shard
            result[mine] = self._known(shard, self._tokens[shard][positions[mine] - self._starts[shard]])
        return result

    def slice(self, start: int, stop: int) -> NDArray[np.int32]:
        """Token ids from `start` up to, not including, `stop`."""
        parts = [np.empty(0, np.int32)]
        for shard, (first, tokens) in enumerate(zip(self._starts, self._tokens, strict=False)):
            low, high = max(0, start - first), min(len(tokens), stop - first)
            if low < high:
                parts.append(self._known(shard, tokens[low:high]).astype(np.int32))
        return np.concatenate(parts) if len(parts) > 2 else parts[-1]

    def _known(self, shard: int, tokens: NDArray[Any]) -> NDArray[Any]:
        """Tokens of a shard; refused where one is not in the vocabulary."""
        if tokens.size and (highest := int(tokens.max())) >= self._vocab_size:
            reason = f"holds token {highest} of a vocabulary of {self._vocab_size}"
            raise DataError(f"{self._names[shard]}.tokens", reason, fix="prepare the data again")
        return tokens

    def _offsets(self, part: str, starts: list[NDArray[Any]], sizes: list[int]) -> NDArray[np.int64]:
        """Starts within shards into starts overall, with the total at the end; each shard's begin at 0 and rise."""
        result = np.empty(sum(map(len, starts)) + 1, np.int64)
        at, before = 0, 0
        for name, found, size in zip(self._names, starts, sizes, strict=True):
            rising = len(found) == 0 or (found[0] == 0 and found[-1] < size and bool((found[1:] > found[:-1]).all()))
            if not rising:
                reason = f"is damaged: its {part} do not follow one another"
                raise DataError(f"{name}.{part}", reason, fix="prepare the data again")
            np.add(found, before, out=result[at : at + len(found)], casting="unsafe")
            at, before = at + len(found), before + size
        result[at] = before
        return result


class Prepared:
    """A folder that `electra prepare` finished."""

    def __init__(self, folder: Path, manifest: dict[str, Any], sums: Manifest, *, verified: bool) -> None:
        self.folder = folder
        self.manifest = manifest
        self.sums = sums
        self.verified = verified
        """Whether every file was hashed when it was opened."""
        self.vocab_size = int(manifest["tokenizer"]["vocab_size"])
        self.fingerprint = str(manifest["tokenizer"]["fingerprint"])
        dtype = token_type(self.vocab_size)
        size = self.vocab_size
        self.train = Split(folder / TRAIN, manifest["splits"][TRAIN], dtype=dtype, vocab_size=size)
        self.held_out = Split(folder / HELD_OUT, manifest["splits"][HELD_OUT], dtype=dtype, vocab_size=size)

    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.load(self.folder / TOKENIZER)
        if tokenizer.fingerprint != self.fingerprint:
            raise DataError(self.folder / TOKENIZER, "is not the tokenizer that the shards were made with")
        return tokenizer


def open_data(folder: Path, *, verify: bool = True) -> Prepared:
    """The prepared data of a folder.

    Every file's size is always checked. Its sha256 is the first time, and when the file has changed since; not without
    `verify`, for processes beside one that does.
    """
    manifest = read_manifest(folder)
    sums = sums_of(folder, manifest)
    sums.check_sizes()
    _check_counts(folder, manifest, sums)
    return Prepared(folder, manifest, sums, verified=verify and verify_once(sums))


def _check_counts(folder: Path, manifest: dict[str, Any], sums: Manifest) -> None:
    """The counts in data.json must fit the files: arrays are read by them."""
    width = token_type(int(manifest["tokenizer"]["vocab_size"])).itemsize
    widths = {"tokens": width, "sentences": SENTENCE.itemsize, "documents": DOCUMENT.itemsize}
    for split in (TRAIN, HELD_OUT):
        for shard in manifest["splits"][split]["shards"]:
            for part, size in widths.items():
                path = f"{split}/{shard['name']}.{part}"
                if path not in sums.files or sums.files[path].bytes != shard[part] * size:
                    raise DataError(folder / path, "does not fit the counts in data.json", fix="prepare the data again")
