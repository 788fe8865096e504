"""The prepared-data format, version 1: what is in a folder that `electra prepare` leaves.

    DATA/data.json                 written last: its presence says that everything else is whole
    DATA/manifest.json             size and sha256 of every other file, data.json too (`electra.manifest`)
    DATA/tokenizer/                tokenizer.json, tokenizer_config.json; vocab.txt of a BERT vocabulary
    DATA/train/00000.tokens        token ids, uint16 (uint32 for more than 65,536 entries), no special tokens
    DATA/train/00000.sentences     uint32 a sentence: position of its first token in the shard
    DATA/train/00000.documents     two uint64 a document: its id, and the number of its first sentence in the shard
    DATA/held-out/00000.*          the same

All numbers are little-endian, no file has a header. A document's id is the first 8 bytes of the blake2b hash of its
letters and digits, so it names the text itself; a part of a document that is split between training and held-out text
has an id that follows from both. Documents stand in the order of the sources, each text once; a shard holds whole
documents. data.json has the format version, the options, the counters, the sources with sizes and
sha256, the counts of every shard, and the size and sha256 of every file; no time, machine or number of workers, so
that equal text and options give equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import DataError
from electra.fsio import json_bytes, read_object, safe_join
from electra.manifest import FileSum, Manifest, commit_files
from electra.manifest import read_manifest as read_sums
from electra.records import read_record

NAME = "electra-data"
VERSION = 1
MANIFEST = "data.json"
WORK = ".work"
TOKENIZER = "tokenizer"
TRAIN, HELD_OUT = "train", "held-out"
SPLITS = (TRAIN, HELD_OUT)
SHARD_TOKENS = 1 << 26
MAX_VOCAB = 1 << 24
"""Entries of a vocabulary; the largest in use have a quarter of a million."""
_AGAIN = "prepare the data again"

SENTENCE = np.dtype("<u4")
DOCUMENT = np.dtype([("id", "<u8"), ("first", "<u8")])


def token_type(vocab_size: int) -> np.dtype[Any]:
    """How token ids of a vocabulary are stored."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def read_manifest(folder: Path) -> dict[str, Any]:
    """data.json of a finished folder; a DataError says what is wrong with any other."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / WORK).is_dir():
            raise DataError(folder, "is not finished", fix="run the same `electra prepare` command again")
        raise DataError(folder, f"holds no prepared data: no {MANIFEST}", fix="electra prepare SOURCE --out DATA")
    if (sums := read_sums(folder, error=DataError, fix=_AGAIN)) is not None:
        sums.verify(MANIFEST)
    manifest = read_object(path, fix=_AGAIN)
    if manifest.get("format") != NAME:
        raise DataError(path, f"is not a manifest of {NAME}")
    version = manifest.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        fix = "update Electra" if newer else _AGAIN
        raise DataError(path, f"has format version {version}; this Electra reads {VERSION}", fix=fix)
    read_record(_Manifest, manifest, where=path, fix=_AGAIN)
    return manifest


# What readers use of the manifest, so that a damaged one is a message and not a traceback.


@dataclass(frozen=True, slots=True)
class _Shard:
    name: str
    tokens: int
    sentences: int
    documents: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d{5,}", self.name, re.ASCII):
            raise ValueError(f"{self.name!r} is no name of a shard")
        if min(self.tokens, self.sentences, self.documents) < 0:
            raise ValueError(f"shard {self.name} has a negative count")


@dataclass(frozen=True, slots=True)
class _Split:
    documents: int
    sentences: int
    tokens: int
    shards: list[_Shard]

    def __post_init__(self) -> None:
        for name in ("documents", "sentences", "tokens"):
            if not 0 < getattr(self, name) == sum(getattr(shard, name) for shard in self.shards):
                raise ValueError(f"a split's {name} are not those of its shards")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    fingerprint: str
    vocab_size: int
    kind: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.vocab_size <= MAX_VOCAB:
            raise ValueError(f"a vocabulary has 1 to {MAX_VOCAB} entries, not {self.vocab_size}")


@dataclass(frozen=True, slots=True)
class _Counters:
    dropped_short: int
    dropped_duplicate: int
    dropped_also_held_out: int
    documents_split: int = 0
    characters: int = 0
    unknown_characters: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    split: str
    sha256: str


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        safe_join(Path(), self.path)


@dataclass(frozen=True, slots=True)
class _Manifest:
    options: dict[str, Any]
    sources: list[_Source]
    tokenizer: _Vocabulary
    counters: _Counters
    splits: dict[str, _Split]
    files: list[_File]

    def __post_init__(self) -> None:
        if missing := [split for split in SPLITS if split not in self.splits]:
            raise ValueError(f"has no '{missing[0]}'")


def sums_of(folder: Path, manifest: dict[str, Any]) -> Manifest:
    """The sums of every file of a finished folder: of manifest.json or, before version 0.3, of data.json itself."""
    sums = read_sums(folder, error=DataError, fix=_AGAIN)
    if sums is not None:
        return sums
    return Manifest(folder=folder, files=_listed(manifest), error=DataError, fix=_AGAIN)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Finish a folder whose other files are there: data.json, and the sums of all."""
    commit_files(folder, {MANIFEST: json_bytes(manifest)}, others=_listed(manifest))


def _listed(manifest: dict[str, Any]) -> dict[str, FileSum]:
    return {file["path"]: FileSum(file["bytes"], file["sha256"]) for file in manifest["files"]}
