"""What the user named (files, folders, globs, `-`, `hf:NAME`) as a sorted list of files to read."""

from __future__ import annotations

import glob
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.corpus.streams import COMPRESSIONS, plain_suffix
from electra.errors import ConfigError, DataError, pip_install
from electra.fsio import commit_dir
from electra.progress import WARNING, counted, say

PAGES = (".html", ".htm")
FORMATS = (".txt", ".md", *PAGES, ".jsonl", ".csv", ".tsv", ".parquet")
STDIN = "-"
HUB = "hf:"
_LISTED = 5  # linked folders
_SPLITS = ("train", "validation", "valid", "dev", "test")
_KNOWN = "known are " + " ".join(FORMATS) + ", each also with " + " ".join(COMPRESSIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file of the corpus."""

    name: str
    """The same on every machine: relative to the folder that was given, or the bare file name."""
    path: Path
    format: str
    """One of FORMATS."""


def file_format(path: Path) -> str | None:
    """The suffix that says how to read the file, without that of a compression; None where it says nothing."""
    suffix = plain_suffix(path)
    return suffix if suffix in FORMATS else None


def resolve(names: Sequence[str], *, spool: Path, text_column: str, skip: Path | None = None) -> list[Source]:
    """Every file behind the names, in order; `-` and `hf:` are first copied to the folder `spool`."""
    sources: list[Source] = []
    for name in names:
        if name == STDIN:
            sources.append(_spool_stdin(spool))
        elif name.startswith(HUB):
            sources.append(_spool_hub(name, spool, text_column=text_column))
        else:
            sources.extend(_files(name, skip=skip))
    return sources


def _files(name: str, *, skip: Path | None) -> list[Source]:
    path = Path(name)
    if path.is_dir():
        return _folder(path, skip=skip)
    if path.exists():
        return [_file(path, name=path.name)]
    if not glob.has_magic(name):
        raise DataError(name, "no such file or folder")
    matches = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    sources = [_file(match, name=match.name) for match in matches if match.is_file()]
    if not sources:
        raise DataError(name, "no file matches")
    return sources


def _file(path: Path, *, name: str) -> Source:
    kind = file_format(path)
    if kind is None:
        raise DataError(path, f"the name does not say what is in the file; {_KNOWN}", fix="rename it")
    if path.is_symlink() and not path.exists():
        raise DataError(path, f"is a link to {os.readlink(path)}, which is not there", fix="mend or remove the link")
    if not path.is_file():
        raise DataError(path, "is not a file", fix="take it out")
    if not os.access(path, os.R_OK):
        raise DataError(path, "may not be read", fix="give yourself the right to, or take it out")
    return Source(name=name, path=path, format=kind)


def _folder(folder: Path, *, skip: Path | None) -> list[Source]:
    """Files of known formats, recursively; hidden ones and the output folder are not part of the corpus.

    Links to folders are named and not followed, since they may lead back to where they stand.
    """
    found: list[Source] = []
    left: Counter[str] = Counter()
    linked: list[str] = []
    skipped = skip.resolve() if skip else None
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and (Path(place) / name).resolve() != skipped
        ]
        linked += [str(path) for name in folders if (path := Path(place) / name).is_symlink()]
        for file in files:
            path = Path(place) / file
            if file.startswith("."):
                continue
            if file_format(path):
                found.append(_file(path, name=path.relative_to(folder).as_posix()))
            else:
                left[path.suffix.lower() or "without a suffix"] += 1
    others = ", ".join(f"{count} {suffix}" for suffix, count in left.most_common(9))
    links = " ".join(map(shlex.quote, sorted(linked)[:_LISTED])) + " ..." * (len(linked) > _LISTED)
    if not found:
        there = f" ({others} are there)" if left else ""
        fix = f"links to folders are not followed: name {links}" if linked else ""
        raise DataError(folder, f"no text in this folder{there}; {_KNOWN}", fix=fix)
    if left:
        names = "as its name is not that of text" if left.total() == 1 else "as their names are not those of text"
        say(f"{folder}: {counted(left.total(), 'file')} left out, {names}: {others}")
    if linked:
        kept = counted(len(linked), "linked folder")
        say(f"{WARNING} {folder}: {kept} left out (name what you want of it as a source of its own): {links}")
    return sorted(found, key=lambda source: source.name)


def _spool_stdin(spool: Path) -> Source:
    """Standard input as a file, because preparing reads its text twice and may have to resume."""
    folder, stream = spool / "stdin", sys.stdin.buffer
    first = stream.read(1 << 20)
    if first or not folder.exists():  # without a pipe, continue with what an earlier run was given
        shutil.rmtree(folder, ignore_errors=True)
        with commit_dir(folder) as aside, open(aside / "text.txt", "wb") as out:
            out.write(first)
            shutil.copyfileobj(stream, out, 1 << 20)
    return Source(name=STDIN, path=folder / "text.txt", format=".txt")


def parse_hub(name: str) -> tuple[str, str | None, str]:
    """`hf:NAME[:CONFIG][/SPLIT]` as (name, config, split); the split is `train` where none is given."""
    rest = name.removeprefix(HUB)
    data, _, config = rest.partition(":")
    split = "train"
    if config:
        config, _, named = config.partition("/")
        split = named or split
    else:
        parent, _, last = data.rpartition("/")
        if parent and (last in _SPLITS or (parent.count("/") == 1 and data[0] not in "./")):
            data, split = parent, last
    if not data:
        raise ConfigError(name, "names no data set", fix="hf:NAME[:CONFIG][/SPLIT], as in hf:wikitext:wikitext-2-v1")
    return data, config or None, split


def _spool_hub(name: str, spool: Path, *, text_column: str) -> Source:
    data, config, split = parse_hub(name)
    folder = spool / name.removeprefix(HUB).replace("/", "--").replace(":", "--")
    source = Source(name=name, path=folder / "text.jsonl", format=".jsonl")
    if folder.exists():
        return source
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(name, f"reading hub data sets needs: {pip_install('data')}") from error
    try:
        rows = datasets.load_dataset(data, config, split=split, streaming=True)
        with commit_dir(folder) as aside, open(aside / "text.jsonl", "wb") as out:
            for row in rows:
                if text_column not in row:
                    columns = ", ".join(sorted(row))
                    raise DataError(name, f"no column '{text_column}'; found {columns}", fix="--text-column NAME")
                out.write(json.dumps({text_column: row[text_column]}).encode() + b"\n")
    except DataError:
        raise
    except Exception as error:  # whatever the network, the hub or a data set's files come up with
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(name, f"cannot be loaded: {reason}") from error
    return source
