"""The run folder: made once, afterwards open only to the very same run and to one process at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from electra import hardware
from electra.checkpoint import store
from electra.config.load import diff, load, to_toml
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError, DataError
from electra.fsio import only_one, read_json, sha256_file, write_atomic, write_json
from electra.model.cost import train_flops
from electra.shards.dataset import Prepared
from electra.shards.format import MANIFEST
from electra.tokenizer.codec import Tokenizer

CONFIG, FACTS, TOKENIZER = "config.toml", "run.json", "tokenizer"
FREE = ("model.dropout", "model.attention_dropout", "model.init_std")  # what may change when an import trains on


@contextlib.contextmanager
def storage(out: Path) -> Iterator[None]:
    """Turn a failed read or write into one line about the folder."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(
            error.filename or out, f"cannot be used: {reason}", fix="see to the disk, then run it again"
        ) from error


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Make the folder where it is not there, and be the only process that trains in it."""
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(only_one(out))
        except BlockingIOError as error:
            raise ConfigError("--out", f"another process is training in {out}", fix="wait, or stop it") from error
        yield


def open_run(out: Path, config: Config, prepared: Prepared) -> None:
    """Make a new run folder of `out`, or check that it holds this very run, or a model that this run can go on from."""
    data = sha256_file(prepared.folder / MANIFEST)
    if (out / FACTS).exists() and (out / CONFIG).exists():
        if changed := diff(load(file=out / CONFIG), config):
            raise ConfigError(
                str(out), f"holds a run with another config: {_listing(changed)}", fix="use another --out"
            )
        if _known_data(out) != data:
            raise DataError(prepared.folder, f"is not the data that {out} was started on", fix="use another --out")
        return
    if (out / CONFIG).exists() and (out / store.FOLDER).exists():
        _check_imported(out, config, prepared)
    facts: dict[str, Any] = hardware.facts() | {
        "argv": [Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])],
        "seed": config.seed,
        "data_sha256": data,
        "ledger": asdict(train_flops(config)),
    }
    prepared.tokenizer().save(out / TOKENIZER)
    write_atomic(out / CONFIG, to_toml(config).encode())
    write_json(out / FACTS, facts)  # last: with it the run has begun


def _check_imported(out: Path, config: Config, prepared: Prepared) -> None:
    """A model that came from elsewhere goes on with its own vocabulary and sizes; all else is this run's to choose."""
    if Tokenizer.load(out / TOKENIZER).fingerprint != prepared.fingerprint:
        fix = f"prepare the text with --vocab {out / TOKENIZER / 'vocab.txt'}"
        raise DataError(prepared.folder, f"has another vocabulary than the model in {out}", fix=fix)
    fixed = ("model.", "objective.name", *(["generator."] if config.objective.name == "rtd" else []))
    found = diff(load(file=out / CONFIG), config)
    if changed := [row for row in found if row[0].startswith(fixed) and row[0] not in FREE]:
        raise ConfigError(str(out), f"holds another model: {_listing(changed)}", fix=f"use --config {out / CONFIG}")


def _listing(changed: list[tuple[str, Any, Any]]) -> str:
    return ", ".join(f"{key} {old} -> {new}" for key, old, new in changed)


def _known_data(out: Path) -> str:
    try:
        return str(read_json(out / FACTS)["data_sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(out / FACTS, f"cannot be read: {error}") from error


def _without_folders(argument: str) -> str:
    """An argument with whole paths cut to their last part: where a person's files lie is nobody's business."""
    key, equals, value = argument.rpartition("=")
    return key + equals + (Path(value).name if Path(value).is_absolute() else value)
