"""Finished units into shards: duplicates out, held-out documents apart, one streaming pass, then data.json."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import DataError
from electra.fsio import commit_dir
from electra.manifest import FILE as SUMS
from electra.manifest import sums_below
from electra.progress import progress
from electra.shards.dedup import Choice, choose
from electra.shards.format import HELD_OUT, NAME, SPLITS, TOKENIZER, TRAIN, VERSION, write_manifest
from electra.shards.held_out import choose_held_out, divide
from electra.shards.units import Header, Unit, read_header, read_keys, read_unit
from electra.shards.writer import SplitWriter
from electra.tokenizer.codec import Tokenizer

Kept = np.ndarray[Any, Any]
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
    choice = choose(
        lambda: (read_keys(path, header) for path, header in zip(units, headers, strict=True)),
        total=int(starts[-1]),
        first_train=first_train,
    )
    _check(choice, first_train=first_train, held_out_files=share is None)
    parts = list(zip(units, headers, (choice.keep[a:b] for a, b in pairwise(starts)), strict=True))
    chosen = None if share is None else choose_held_out(lambda: _outlines(parts), share=share)
    for name in (*SPLITS, TOKENIZER):
        shutil.rmtree(folder / name, ignore_errors=True)  # of a run that died before data.json
    (folder / SUMS).unlink(missing_ok=True)
    with (
        commit_dir(folder / TRAIN) as train,
        commit_dir(folder / HELD_OUT) as held_out,
        SplitWriter(train, split=TRAIN) as to_train,
        SplitWriter(held_out, split=HELD_OUT) as to_hold_out,
    ):
        writers = {TRAIN: to_train, HELD_OUT: to_hold_out}
        with progress("Writing shards", total=float(sum(header.tokens for header in headers)), unit="tokens") as bar:
            done = split = 0
            for number, (path, header, keep) in enumerate(parts):
                unit = read_unit(path, header)
                if chosen is None:
                    held = np.full(len(keep), number < held_out_units)
                else:
                    unit, held, documents = divide(unit, chosen)
                    keep = keep[documents]
                    split += int(np.count_nonzero(np.bincount(documents[keep]) > 1))
                to_train.add(unit, keep & ~held)
                to_hold_out.add(unit, keep & held)
                done += header.tokens
                bar.update(done)
    with commit_dir(folder / TOKENIZER) as aside:
        tokenizer.save(aside)
    manifest = _manifest(folder, headers, choice, writers, split=split, tokenizer=tokenizer, about=about)
    write_manifest(folder, manifest)
    return manifest


def _outlines(parts: Sequence[tuple[Path, Header, Kept]]) -> Iterator[tuple[Unit, Kept]]:
    return ((read_unit(path, header, outline=True), keep) for path, header, keep in parts)


def _header(path: Path) -> Header:
    header = read_header(path)
    if header is None:
        raise DataError(path, "is missing or damaged", fix="run the same command again")
    return header


def _check(choice: Choice, *, first_train: int, held_out_files: bool) -> None:
    """DataError where there is nothing to train or evaluate on."""
    train, held_out = int(choice.keep[first_train:].sum()), int(choice.keep[:first_train].sum())
    if held_out_files and not held_out:
        raise DataError("--held-out", "no document in the held-out files")
    if not train:
        raise DataError("corpus", "no document is left", fix="is it empty, too short or all in --held-out?")


def _manifest(
    folder: Path,
    headers: Sequence[Header],
    choice: Choice,
    writers: dict[str, SplitWriter],
    *,
    split: int,
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
            "kind": tokenizer.kind,
            **tokenizer.options,
        },
        "counters": {
            "documents_read": tallies["read"],
            "documents_cut": tallies["cut"],
            "documents_split": split,
            "dropped_short": tallies["short"],
            "dropped_duplicate": choice.duplicates,
            "dropped_also_held_out": choice.also_held_out,
            "text_bytes": sum(header.text_bytes for header in headers),
            "characters": sum(header.characters for header in headers),
            "unknown_characters": sum(header.unknown_characters for header in headers),
        },
        "splits": {name: writers[name].totals() for name in SPLITS},
        "files": list(_files(folder, writers)),
    }


def _files(folder: Path, writers: dict[str, SplitWriter]) -> Iterator[dict[str, Any]]:
    for path, found in sums_below(folder, TOKENIZER).items():
        yield {"path": path, "bytes": found.bytes, "sha256": found.sha256}
    for name in SPLITS:
        yield from writers[name].files
