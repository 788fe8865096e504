"""Finished units into shards: duplicates out, held-out documents apart, one streaming pass, then data.json."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import DataError
from electra.fsio import commit_dir, sha256_file, write_json
from electra.progress import progress
from electra.shards.dedup import Choice, choose
from electra.shards.format import HELD_OUT, MANIFEST, NAME, SPLITS, TOKENIZER, TRAIN, VERSION
from electra.shards.units import Header, read_header, read_keys, read_unit
from electra.shards.writer import SplitWriter
from electra.tokenizer.codec import Tokenizer

TALLIES = ("read", "short", "cut")


def finalise(
    folder: Path,
    units: Sequence[Path],
    *,
    held_out_units: int,
    share: float | None,
    tokenizer: Tokenizer,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Write everything that `format` describes; the manifest. The first `held_out_units` are of held-out files."""
    headers = [_header(path) for path in units]
    starts = np.cumsum([0, *(header.documents for header in headers)])
    first_train = int(starts[held_out_units])
    limit = 0 if share is None else min(round(share * (1 << 64)), (1 << 64) - 1)
    choice = choose(
        lambda: (read_keys(path, header) for path, header in zip(units, headers, strict=True)),
        total=int(starts[-1]),
        first_train=first_train,
        limit=limit,
    )
    train_documents = _check(choice, first_train=first_train, held_out_files=share is None)
    by_limit = 0 < choice.held_out < train_documents  # otherwise the document with the smallest id is held out
    for name in (*SPLITS, TOKENIZER):
        shutil.rmtree(folder / name, ignore_errors=True)  # of a run that died before data.json
    with commit_dir(folder / TRAIN) as train, commit_dir(folder / HELD_OUT) as held_out:
        writers = {
            TRAIN: SplitWriter(train, split=TRAIN, unknown=tokenizer.unk_id),
            HELD_OUT: SplitWriter(held_out, split=HELD_OUT, unknown=tokenizer.unk_id),
        }
        with progress("Writing shards", total=float(sum(header.tokens for header in headers)), unit="tokens") as bar:
            done = 0
            for number, (path, header) in enumerate(zip(units, headers, strict=True)):
                unit = read_unit(path, header)
                places = np.arange(starts[number], starts[number + 1])
                keep = choice.keep[places]
                if share is None:
                    held = places < first_train
                elif by_limit:
                    held = unit.keys["id"] < np.uint64(limit)
                else:
                    held = places == choice.smallest[1]
                writers[TRAIN].add(unit, keep & ~held)
                writers[HELD_OUT].add(unit, keep & held)
                done += header.tokens
                bar.update(done)
        for writer in writers.values():
            writer.close()
    with commit_dir(folder / TOKENIZER) as aside:
        tokenizer.save(aside)
    manifest = _manifest(folder, headers, choice, writers, tokenizer=tokenizer, about=about)
    write_json(folder / MANIFEST, manifest)
    return manifest


def _header(path: Path) -> Header:
    header = read_header(path)
    if header is None:
        raise DataError(path, "is missing or damaged", fix="run the same command again")
    return header


def _check(choice: Choice, *, first_train: int, held_out_files: bool) -> int:
    """How many documents the training sources keep; DataError where there is nothing to train or evaluate on."""
    train, held_out = int(choice.keep[first_train:].sum()), int(choice.keep[:first_train].sum())
    if held_out_files and not held_out:
        raise DataError("--held-out", "no document in the held-out files")
    if not train:
        raise DataError("corpus", "no document is left", fix="is it empty, too short or all in --held-out?")
    if not held_out_files and train == 1:
        reason = "one document cannot be split into training and held-out text"
        raise DataError("corpus", reason, fix="separate documents by blank lines, or give --held-out FILE")
    return train


def _manifest(
    folder: Path,
    headers: Sequence[Header],
    choice: Choice,
    writers: dict[str, SplitWriter],
    *,
    tokenizer: Tokenizer,
    about: dict[str, Any],
) -> dict[str, Any]:
    tallies = {name: sum(header.tally[name] for header in headers) for name in TALLIES}
    return {
        "format": NAME,
        "version": VERSION,
        **about,
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "unused": sum(token.startswith("[unused") for token in tokenizer.vocab),
            **tokenizer.options,
        },
        "counters": {
            "documents_read": tallies["read"],
            "documents_cut": tallies["cut"],
            "dropped_short": tallies["short"],
            "dropped_duplicate": choice.duplicates,
            "dropped_also_held_out": choice.also_held_out,
            "text_bytes": sum(header.text_bytes for header in headers),
        },
        "splits": {name: writers[name].totals() for name in SPLITS},
        "files": list(_files(folder, writers)),
    }


def _files(folder: Path, writers: dict[str, SplitWriter]) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / TOKENIZER).iterdir()):
        yield {"path": f"{TOKENIZER}/{path.name}", "bytes": path.stat().st_size, "sha256": sha256_file(path)}
    for name in SPLITS:
        yield from writers[name].files
