"""What a preparation was asked for, and whether a finished folder already answers it."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from electra.config.keys import of_type
from electra.corpus.sources import HUB, STDIN, Source, resolve
from electra.errors import ConfigError, DataError
from electra.fsio import sha256_file
from electra.hardware import cores
from electra.shards.format import HELD_OUT, TOKENIZER, TRAIN, WORK, read_manifest, sums_of
from electra.shards.options import MAX_WORKERS, PrepareOptions, parse_worker, refuse_changes
from electra.tokenizer.codec import TOKENIZER_FILE, VOCAB_FILE, Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a preparation went."""

    folder: Path
    manifest: dict[str, Any] | None
    """None where other workers still have units to do."""
    already_done: bool = False
    """Everything was there and verified; nothing was written."""
    seconds: float = 0.0
    text_bytes: int = 0
    """Text that this run tokenized."""
    units: int = 0
    units_kept: int = 0
    """Units that an earlier run had finished."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    out: Path
    named: dict[str, Sequence[str]]
    """Names of sources by split; held-out ones first, so that their documents win over equal ones."""
    options: PrepareOptions
    tokenizer: Tokenizer | None
    """The one that was given; None where one is trained."""
    recorded: dict[str, Any]
    workers: int
    number: int
    total: int

    @property
    def work(self) -> Path:
        return self.out / WORK

    def resolve(self, names: Sequence[str]) -> list[Source]:
        spool = self.work / "spool"
        sources = resolve(names, spool=spool, text_column=self.options.text_column, skip=self.out)
        for source in sources:
            try:
                source.name.encode()
            except UnicodeEncodeError as error:
                raise DataError(source.path, "its name is not UTF-8", fix="rename it") from error
        return sources


def make_request(
    sources: Sequence[str],
    out: Path,
    options: PrepareOptions,
    vocab: Path | None,
    held_out: Sequence[str],
    workers: int | None,
    worker: str | None,
) -> Request:
    options.check()
    of_type(workers, int | None, "--workers")
    workers = workers if workers is not None else cores()
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError("--workers", f"{workers} is not from 1 to {MAX_WORKERS}")
    number, total = parse_worker(worker)
    if not sources:
        raise ConfigError("SOURCE", "nothing to prepare", fix="name a file, a folder, a glob, - or hf:NAME")
    if [*sources, *held_out].count(STDIN) > 1:
        raise ConfigError("SOURCE", "standard input can be read only once")
    given = None if vocab is None else _given(vocab, options)
    if given is not None:
        options = replace(options, lowercase=given[0].lowercase, strip_accents=given[0].strip_accents)
    else:
        options = replace(options, lowercase=bool(options.lowercase), strip_accents=bool(options.strip_accents))
    return Request(
        out=out,
        named={HELD_OUT: held_out, TRAIN: sources},
        options=options,
        tokenizer=given[0] if given else None,
        recorded=options.recorded(vocab_sha256=given[1] if given else None, held_out_given=bool(held_out)),
        workers=workers,
        number=number,
        total=total,
    )


def _given(vocab: Path, options: PrepareOptions) -> tuple[Tokenizer, str]:
    """The tokenizer that was named, folding text as it was made for or as asked; and the sha256 of its file."""
    if options.tokenizer != "auto":
        raise ConfigError("--tokenizer", "is for a vocabulary to train, and --vocab gives one", fix="leave one out")
    tokenizer = Tokenizer.read(vocab)
    file = vocab
    if vocab.is_dir():
        inner = vocab / TOKENIZER if (vocab / TOKENIZER).is_dir() else vocab
        file = inner / (VOCAB_FILE if tokenizer.kind == "bert" and (inner / VOCAB_FILE).exists() else TOKENIZER_FILE)
    lowercase = tokenizer.lowercase if options.lowercase is None else options.lowercase
    strip_accents = tokenizer.strip_accents if options.strip_accents is None else options.strip_accents
    if tokenizer.kind == "bert":
        tokenizer = Tokenizer(tokenizer.vocab, lowercase=lowercase, strip_accents=strip_accents)
    elif (lowercase, strip_accents) != (tokenizer.lowercase, tokenizer.strip_accents):
        reason = "was trained with another choice of case and accents"
        raise ConfigError("--vocab", f"{vocab} {reason}", fix="leave --lowercase and --strip-accents out")
    return tokenizer, sha256_file(file)


def verify(request: Request) -> Result:
    """The same command on finished data: compare what was asked, check every file, change nothing."""
    manifest = read_manifest(request.out)
    before, now = dict(manifest["options"]), dict(request.recorded)
    files: list[tuple[str, str, Source | None]] = []
    for split, names in request.named.items():
        before[split] = [entry["name"] for entry in manifest["sources"] if entry["split"] == split]
        for name in names:
            apart = name == STDIN or name.startswith(HUB)
            files += [(split, name, None)] if apart else [(split, s.name, s) for s in request.resolve([name])]
        now[split] = [name for where, name, _ in files if where == split]
    refuse_changes(before, now, folder=request.out)
    for entry, (_, name, source) in zip(manifest["sources"], files, strict=True):
        if (digest := _digest(name, source)) and digest != entry["sha256"]:
            raise ConfigError(str(request.out), f"source '{name}' has changed since", fix="use another --out")
    sums_of(request.out, manifest).verify()
    shutil.rmtree(request.work, ignore_errors=True)
    return Result(folder=request.out, manifest=manifest, already_done=True)


def _digest(name: str, source: Source | None) -> str:
    """sha256 of a source; empty where there is nothing to compare (a hub data set is not fetched again)."""
    if source is not None:
        return sha256_file(source.path)
    if name != STDIN:
        return ""
    digest, size = hashlib.sha256(), 0
    while piece := sys.stdin.buffer.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest() if size else ""
