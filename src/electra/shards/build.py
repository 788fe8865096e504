"""`electra prepare`: text files in, tokenizer and shards out; run again, it continues or says that all is done."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.corpus.blocks import BLOCK_BYTES, Blocks
from electra.corpus.sample import sample
from electra.corpus.separators import say_separator
from electra.corpus.sources import Source
from electra.errors import ConfigError, DataError, ElectraError
from electra.fsio import commit_dir, read_json, read_object, remove_leftovers, write_json
from electra.progress import progress, say, scaled
from electra.shards.finalise import finalise
from electra.shards.format import HELD_OUT, MANIFEST, TOKENIZER, TRAIN, read_manifest
from electra.shards.locks import alone, claim, lock, stoppable, storage
from electra.shards.options import PrepareOptions, refuse_changes
from electra.shards.pool import Job, run
from electra.shards.request import Request, Result, make_request, verify
from electra.shards.trained_tokenizer import train_tokenizer
from electra.shards.units import read_header, unit_key, unit_path
from electra.tokenizer.codec import Tokenizer

_CHOICES, _SAMPLED = "options.json", "sample.json"


@dataclass(slots=True)
class _Pass:
    """What one pass over the sources found."""

    units: list[Path] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    held_out_units: int = 0
    sources: list[dict[str, Any]] = field(default_factory=list)
    reused: int = 0
    position: int = 0
    text_bytes: int = 0
    separators: set[str] = field(default_factory=set)
    """Those of the .csv files so far; a line names the first file of each."""


def prepare(
    sources: Sequence[str],
    *,
    out: Path,
    options: PrepareOptions | None = None,
    vocab: Path | None = None,
    held_out: Sequence[str] = (),
    workers: int | None = None,
    worker: str | None = None,
) -> Result:
    """Tokenizer and shards of the sources in the folder `out`; a finished folder is verified instead.

    From a script, call this under `if __name__ == "__main__":`, because worker processes import the script.
    """
    request = make_request(sources, out, options or PrepareOptions(), vocab, held_out, workers, worker)
    started = time.monotonic()
    with storage(out):
        if (out / MANIFEST).exists():
            return verify(request)
        made = _claim_folder(request)
        with stoppable(out), lock(request.work, number=request.number, total=request.total):
            try:
                manifest, state = _build(request)
            except (ElectraError, OSError):
                _leave_nothing_useless(request, made=made)
                raise
    return Result(
        folder=out,
        manifest=manifest,
        seconds=time.monotonic() - started,
        text_bytes=state.text_bytes,
        units=len(state.units),
        units_kept=state.reused,
    )


def _claim_folder(request: Request) -> bool:
    """Make the folder; True where it was not there. One with other things in it is not ours to write to."""
    made = not request.out.exists()
    if not made and not request.work.exists() and any(request.out.iterdir()):
        raise ConfigError("--out", f"{request.out} is not empty and holds no prepared data", fix="use another folder")
    request.work.mkdir(parents=True, exist_ok=True)
    return made


def _leave_nothing_useless(request: Request, *, made: bool) -> None:
    """After a failure before anything was finished, the folder is as it was."""
    if request.total == 1 and not any(request.work.glob("units/*.unit")):
        shutil.rmtree(request.work, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                request.out.rmdir()


def _build(request: Request) -> tuple[dict[str, Any] | None, _Pass]:
    if request.total == 1:
        remove_leftovers(request.out)
        remove_leftovers(request.work / "units")
    found = {split: request.resolve(names) for split, names in request.named.items()}
    choices = {**request.recorded, **{split: [source.name for source in some] for split, some in found.items()}}
    if (request.work / _CHOICES).exists():
        refuse_changes(read_object(request.work / _CHOICES, fix="remove the folder"), choices, folder=request.out)
    else:
        write_json(request.work / _CHOICES, choices)
    try:
        return _finish(request, found)
    except ElectraError:
        _release(request)
        raise


def _release(request: Request) -> None:
    """After a failure a corrected command may use the folder; it keeps the units that it would make again."""
    if alone(request.work, number=request.number, total=request.total):
        (request.work / _CHOICES).unlink(missing_ok=True)
        shutil.rmtree(request.work / TOKENIZER, ignore_errors=True)


def _finish(request: Request, found: dict[str, list[Source]]) -> tuple[dict[str, Any] | None, _Pass]:
    """Tokenize what is not done yet, and write the shards where nothing is missing."""
    tokenizer = _tokenizer(request, found[TRAIN])
    state = _tokenize(request, found, tokenizer)
    if (request.out / MANIFEST).exists():  # another worker was quicker
        return read_manifest(request.out), state
    missing = sum(_key(path) != key for path, key in zip(state.units, state.keys, strict=True))
    if missing:
        say(f"this worker is done; {missing} of {len(state.units)} units wait for other workers")
        return None, state
    with claim(request.work / "finalise.lock") as mine:
        if not mine:
            say("another worker is writing the shards")
            return None, state
        if (request.out / MANIFEST).exists():
            return read_manifest(request.out), state
        manifest = finalise(
            request.out,
            state.units,
            held_out_units=state.held_out_units,
            share=request.recorded.get("held_out_share"),
            tokenizer=tokenizer,
            about={"options": request.recorded, "sources": state.sources},
        )
        shutil.rmtree(request.work, ignore_errors=True)
    return manifest, state


def _tokenizer(request: Request, sources: Sequence[Source]) -> Tokenizer:
    """The tokenizer, given or trained, saved where worker processes load it."""
    folder, tokenizer, digest = request.work / TOKENIZER, request.tokenizer, ""
    if tokenizer is None:
        part = sample(sources, text_column=request.options.text_column, encoding=request.options.encoding)
        if not part.blocks:
            raise DataError("corpus", "is empty: no text in any source")
        digest = part.sha256
        if (folder / _SAMPLED).exists() and read_json(folder / _SAMPLED) == digest:
            return Tokenizer.load(folder)
        tokenizer = train_tokenizer(part, options=request.options)
    if request.total == 1:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        with commit_dir(folder) as aside:
            tokenizer.save(aside)
            write_json(aside / _SAMPLED, digest)
    except OSError:  # another worker put the same one there first
        if not folder.exists() or Tokenizer.load(folder).fingerprint != tokenizer.fingerprint:
            raise
    return tokenizer


def _tokenize(request: Request, found: dict[str, list[Source]], tokenizer: Tokenizer) -> _Pass:
    state = _Pass()
    size = sum(source.path.stat().st_size for sources in found.values() for source in sources)
    workers = 1 if size <= BLOCK_BYTES else request.workers  # starting processes would take longer
    documents = tokens = 0
    with progress("Tokenizing", total=float(size), unit="B") as bar:
        jobs = _jobs(request, found, state, fingerprint=tokenizer.fingerprint)
        headers = run(
            jobs, tokenizer=tokenizer, folder=request.work / TOKENIZER, options=request.options, workers=workers
        )
        with contextlib.closing(headers):
            for header in headers:
                documents += header.documents
                tokens += header.tokens
                state.text_bytes += header.text_bytes
                bar.update(state.position, f"{scaled(documents)} documents, {scaled(tokens)} tokens")
        bar.update(size)
    if not state.units:
        raise DataError("corpus", "is empty: no text in any source")
    return state


def _jobs(request: Request, found: dict[str, list[Source]], state: _Pass, *, fingerprint: str) -> Iterator[Job]:
    """Read everything once; the blocks that are this worker's and not done yet become jobs."""
    options, before = request.options, 0
    for split, sources in found.items():
        for source in sources:
            blocks = Blocks(source, text_column=options.text_column, encoding=options.encoding, block_bytes=BLOCK_BYTES)
            for block in blocks:
                if blocks.separator not in state.separators:
                    state.separators.add(blocks.separator)
                    say_separator(source.path, blocks.separator)
                index = len(state.units)
                path, key = unit_path(request.work, index), unit_key(block, options=options, fingerprint=fingerprint)
                state.units.append(path)
                state.keys.append(key)
                state.position = before + blocks.position
                if index % request.total != request.number:
                    continue
                if _key(path) == key:
                    state.reused += 1
                elif not (request.out / MANIFEST).exists():
                    yield Job(block, path, key)
            size = source.path.stat().st_size
            before += size
            state.sources.append({"name": source.name, "split": split, "bytes": size, "sha256": blocks.sha256})
        if split == HELD_OUT:
            state.held_out_units = len(state.units)


def _key(path: Path) -> str:
    header = read_header(path)
    return header.key if header else ""
