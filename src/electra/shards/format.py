"""The prepared-data format, version 1: what is in a folder that `electra prepare` leaves.

    DATA/data.json                 written last: its presence says that everything else is whole
    DATA/tokenizer/                vocab.txt, tokenizer.json, tokenizer_config.json
    DATA/train/00000.tokens        token ids, uint16 (uint32 for more than 65,536 entries), no special tokens
    DATA/train/00000.sentences     uint32 a sentence: position of its first token in the shard
    DATA/train/00000.documents     two uint64 a document: its id, and the number of its first sentence in the shard
    DATA/held-out/00000.*          the same

All numbers are little-endian, no file has a header. A document's id is the first 8 bytes of the blake2b hash of its
letters and digits, so it names the text itself. Documents stand in the order of the sources, each text once; a shard
holds whole documents. data.json has the format version, the options, the counters, the sources with sizes and
sha256, the counts of every shard, and the size and sha256 of every file; no time, machine or number of workers, so
that equal text and options give equal bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import DataError
from electra.fsio import read_json, safe_join, sha256_file

NAME = "electra-data"
VERSION = 1
MANIFEST = "data.json"
WORK = ".work"
TOKENIZER = "tokenizer"
TRAIN, HELD_OUT = "train", "held-out"
SPLITS = (TRAIN, HELD_OUT)
SHARD_TOKENS = 1 << 26

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
    try:
        manifest = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(path, f"cannot be read: {error}", fix="prepare the data again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != NAME:
        raise DataError(path, f"is not a manifest of {NAME}")
    version = manifest.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        fix = "update Electra" if newer else "prepare the data again"
        raise DataError(path, f"has format version {version}; this Electra reads {VERSION}", fix=fix)
    _check_shape(manifest, path)
    return manifest


def _check_shape(manifest: dict[str, Any], path: Path) -> None:
    """Every key that readers use, so that a damaged manifest is a message and not a traceback."""
    try:
        int(manifest["tokenizer"]["vocab_size"]), str(manifest["tokenizer"]["fingerprint"])
        for split in SPLITS:
            for shard in manifest["splits"][split]["shards"]:
                str(shard["name"]), int(shard["tokens"]), int(shard["sentences"]), int(shard["documents"])
        for file in manifest["files"]:
            int(file["bytes"]), str(file["sha256"]), safe_join(path.parent, str(file["path"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path, f"is damaged: {error!r}", fix="prepare the data again") from error


def check_files(folder: Path, manifest: dict[str, Any], *, verify: bool) -> None:
    """DataError naming the first file whose size, or with `verify` whose sha256, is not the recorded one."""
    fix = "prepare the data again"
    for file in manifest["files"]:
        path = safe_join(folder, file["path"])
        if not path.is_file():
            raise DataError(path, "is missing", fix=fix)
        if (size := path.stat().st_size) != file["bytes"]:
            raise DataError(path, f"has {size} bytes, not the {file['bytes']} that were written", fix=fix)
        if verify and sha256_file(path) != file["sha256"]:
            raise DataError(path, "is damaged: its sha256 is not the recorded one", fix=fix)
