"""The run folder: made once, afterwards open only to the very same run and to one process at a time."""

from __future__ import annotations

import contextlib
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from electra import hardware, manifest
from electra.checkpoint import store
from electra.config.keys import FORMER_VALUES
from electra.config.load import diff, load, to_toml
from electra.config.schema import Config, DataConfig
from electra.errors import CheckpointError, ConfigError, DataError, StorageError
from electra.fsio import json_bytes, only_one, read_object, remove_leftovers, require_own, sha256_file, write_atomic
from electra.model.cost import train_flops
from electra.progress import say
from electra.records import read_record
from electra.shards.dataset import Prepared
from electra.shards.format import MANIFEST
from electra.tokenizer.codec import Tokenizer
from electra.train.metrics_file import FILE as METRICS
from electra.train.metrics_file import check_lines, read_lines

FORMAT = 2
"""Of run.json: from 2 on, the folder has a manifest."""
CONFIG, FACTS, TOKENIZER = "config.toml", "run.json", "tokenizer"
MAY_CHANGE = (  # of a run that has begun: what leaves its weights alone, but for the last bits
    "track",
    "train.log_every",
    "train.shard",
    "train.micro_batch",
    "train.recompute",
    "evaluate.every",
    "evaluate.seconds",
    "checkpoint.every",
    "checkpoint.seconds",
    "checkpoint.keep",
    "checkpoint.same_kernels",
)
LENGTHENS = ("train.steps", "train.max_minutes")
"""Keys that may grow where a run is to be lengthened."""
FREE = (  # what may change when a model trains on
    "model.dropout", "model.attention_dropout", "model.init_std", "generator.temperature", "generator.disallow_correct",
    "generator.dropout_scale", "generator.lr_scale", "generator.clip",
)  # fmt: skip


@contextlib.contextmanager
def storage(out: Path) -> Iterator[None]:
    """Turn a failed read or write into one line about the folder."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
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


def as_begun(out: Path, config: Config) -> Config:
    """`config`, but with the rows and the warm-up that a run in `out` began with, where defaults have changed since."""
    if not ((out / FACTS).is_file() and (out / CONFIG).is_file()):
        return config
    begun, stored = read_config(out), tomllib.loads((out / CONFIG).read_text(encoding="utf-8"))
    if "warmup_share" not in stored.get("optim", {}):
        config = replace(config, optim=replace(config.optim, warmup_share=1.0))
    former = ("data.layout", stored.get("data", {}).get("layout")) in FORMER_VALUES
    if not former or config.data.layout != DataConfig().layout:
        return config
    say(f"{out} began with data.layout={begun.data.layout}, then the default, and goes on with it")
    rows = {key: getattr(begun.data, key) for key in ("layout", "short", "short_length")}
    return replace(config, data=replace(config.data, **rows))


def open_run(
    out: Path,
    config: Config,
    prepared: Prepared,
    *,
    execution: dict[str, Any],
    notes: dict[str, Any],
    lengthened: list[dict[str, Any]] | None = None,
) -> None:
    """Make a new run folder of `out`, or check that it holds this very run, or a model that this run can go on from.

    In a folder where nothing was trained yet, as a run leaves it that could not begin, another config replaces the
    first. `execution` is how the run's steps execute here, `notes` what else a new run's run.json says. `lengthened` is
    what it notes where the run in `out` is to be lengthened; without it a longer run is another one.
    """
    manifest.finish(out, discard=True)
    data = sha256_file(prepared.folder / MANIFEST)
    _require_whole(out)
    if (out / FACTS).exists():
        if lengthened is not None or not _changed(out, config) or _known_data(out) != data or _trained(out):
            _check_same(out, config, prepared, data=data, lengthens=lengthened is not None)
            _keep_changes(out, config, lengthened or [])
            return
        verify_run(out)
        say(f"{out}: nothing was trained here, so the run begins anew with this config")
    elif (out / CONFIG).exists() and (out / store.FOLDER).exists():
        _check_imported(out, config, prepared)
    else:
        require_own(out, TOKENIZER)
    if not (out / manifest.FILE).exists():
        remove_leftovers(out / TOKENIZER)  # of a run that was killed here: the manifest would list them
        prepared.tokenizer().save(out / TOKENIZER)
    facts: dict[str, Any] = {"format": FORMAT} | hardware.facts()
    facts |= {
        "argv": [Path(sys.argv[0]).name, *map(_without_folders, sys.argv[1:])],
        "seed": config.seed,
        "data_sha256": data,
        **notes,
        "data": {
            "documents": prepared.train.n_documents,
            "sentences": prepared.train.n_sentences,
            "tokens": prepared.train.n_tokens,
            "held_out_tokens": prepared.held_out.n_tokens,
        },
        "ledger": asdict(train_flops(config)),
        "executions": [{"step": 0, **execution}],
    }
    contents = {CONFIG: to_toml(config).encode(), FACTS: json_bytes(facts)}  # the last one says that the run has begun
    manifest.commit_files(out, contents, others=manifest.sums_below(out, TOKENIZER))


def verify_run(run: Path, *names: str) -> None:
    """Refuse a run folder in which one of these files, by default any that does not change, is not as written."""
    sums = manifest.read_manifest(run)
    if sums is not None:
        sums.verify(*names)
    elif _needs_manifest(run):
        raise CheckpointError(run / manifest.FILE, "is missing", fix=manifest.COPY_AGAIN)
    else:
        manifest.read_or_say(run)


def read_config(run: Path) -> Config:
    """The configuration of a run, verified."""
    verify_run(run, CONFIG)
    return load(file=run / CONFIG)


def verify_tokenizer(run: Path) -> None:
    """Refuse a run folder whose tokenizer is not as written."""
    sums = manifest.read_manifest(run)
    verify_run(run, *(sums.below(TOKENIZER) if sums else ()))


def verify_metrics(run: Path, checkpoint: Path | None = None) -> None:
    """Refuse metrics whose lines up to a checkpoint, by default the newest, are not those written before it."""
    newest = checkpoint or next(reversed(store.steps(run)), None)
    sums = None if newest is None else manifest.read_manifest(newest)
    if newest is None or sums is None:
        return
    sums.verify(store.STATE)
    state = read_object(newest / store.STATE, error=CheckpointError)
    if "metrics" in state:
        known = read_record(manifest.FileSum, state["metrics"], where=newest / store.STATE, error=CheckpointError)
        check_lines(run, known, step=store.step_of(newest))


def note_execution(out: Path, *, step: int, execution: dict[str, Any], refuse: bool) -> None:
    """Add to run.json how steps after `step` execute, where that is another way than before, and say so.

    With `refuse`, another way is a ConfigError.
    """
    facts = read_facts(out / FACTS)
    ran: list[dict[str, Any]] = facts.get("executions") or []
    changed = changes(ran[-1], execution) if ran else []
    if not changed:
        return
    listing = "; ".join(changed[:6]) + (f"; and {len(changed) - 6} more" if len(changed) > 6 else "")
    if refuse:
        reason = f"steps would execute in another way than before: {listing}"
        raise ConfigError(
            "checkpoint.same_kernels", reason, fix="resume where it began, or checkpoint.same_kernels=false"
        )
    say(
        f"warning: steps execute in another way than before: {listing}; from step {step} on, weights will be close to"
        " those of an uninterrupted run, but not bit for bit the same"
    )
    if manifest.read_manifest(out) is not None:
        facts["executions"] = [*ran, {"step": step, **execution}]
        manifest.commit_files(out, {FACTS: json_bytes(facts)})


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two ways to execute, each as `name old -> new`."""
    keys = [key for key in now if key != "ops" and key in before and before[key] != now[key]]
    found = [f"{key} {before[key]} -> {now[key]}" for key in keys]
    ran, runs = _backends(before), _backends(now)
    return found + [f"{op} {ran[op]} -> {runs[op]}" for op in runs if op in ran and ran[op] != runs[op]]


def _backends(execution: dict[str, Any]) -> dict[str, str]:
    """The implementation of each op; why the reference was taken is no part of it."""
    rows = execution.get("ops") or []
    plain = "reference"
    return {row["op"]: plain if row["backend"] == plain else f"{row['backend']} ({row['reason']})" for row in rows}


def _require_whole(out: Path) -> None:
    """Refuse a run that has begun and has lost a file that says what it is."""
    begun = (out / FACTS).exists() or any(store.step_of(path) for path in store.steps(out))
    for name in (CONFIG, FACTS) if begun else ():
        if not (out / name).exists():
            fix = f"{manifest.COPY_AGAIN}, or use another --out"
            raise CheckpointError(out / name, "is missing: without it this run cannot go on", fix=fix)


def _trained(out: Path) -> bool:
    """Whether a run has a checkpoint, a model that it began with, or a figure of its training."""
    return bool(store.steps(out)) or any(line["step"] for line in read_lines(out / METRICS))


def _changed(out: Path, config: Config, *free: str) -> list[tuple[str, Any, Any]]:
    """What differs from the config of the run in `out` that may not."""
    return [row for row in diff(load(file=out / CONFIG), config) if row[0] not in (*MAY_CHANGE, *free)]


def _check_same(out: Path, config: Config, prepared: Prepared, *, data: str, lengthens: bool) -> None:
    verify_run(out)
    free = (*LENGTHENS, "train.generator_steps") if lengthens else ()
    if changed := _changed(out, config, *free):
        longer = {row[0] for row in changed} <= set(LENGTHENS)
        wanted = " ".join(f"{key}={new}" for key, _, new in changed)
        lengthen = f"to lengthen it: electra pretrain --resume {shlex.quote(str(out))} {wanted}; or " if longer else ""
        reason = f"holds a run with another config: {_listing(changed)}"
        raise ConfigError(str(out), reason, fix=f"{lengthen}use another --out")
    if _known_data(out) != data:
        raise DataError(prepared.folder, f"is not the data that {out} was started on", fix="use another --out")


def _keep_changes(out: Path, config: Config, lengthened: list[dict[str, Any]]) -> None:
    """Let config.toml and run.json say what a run that goes on has from now on."""
    if not diff(load(file=out / CONFIG), config):
        return
    contents = {CONFIG: to_toml(config).encode()}
    if lengthened:
        facts = read_facts(out / FACTS)
        facts["lengthened"] = [*facts.get("lengthened", []), *lengthened]
        facts["ledger"] = asdict(train_flops(config))
        contents[FACTS] = json_bytes(facts)
    if manifest.read_manifest(out) is not None:
        manifest.commit_files(out, contents)
        return
    for name, content in contents.items():  # as written before there were manifests
        write_atomic(out / name, content)


def _needs_manifest(run: Path) -> bool:
    version = read_object(run / FACTS, error=CheckpointError).get("format", 1) if (run / FACTS).is_file() else 1
    if isinstance(version, int) and version > FORMAT:
        reason = f"format {version} is newer than this program's {FORMAT}"
        raise CheckpointError(run / FACTS, reason, fix="upgrade electra")
    return version != 1


def _check_imported(out: Path, config: Config, prepared: Prepared) -> None:
    """A model that came from elsewhere goes on with its own vocabulary and sizes; all else is this run's to choose."""
    verify_run(out)
    if Tokenizer.load(out / TOKENIZER).fingerprint != prepared.fingerprint:
        fix = f"prepare the text with --vocab {out / TOKENIZER}"
        raise DataError(prepared.folder, f"has another vocabulary than the model in {out}", fix=fix)
    fixed = ("model.", "objective.name", *(["generator."] if config.objective.name == "rtd" else []))
    found = diff(load(file=out / CONFIG), config)
    if changed := [row for row in found if row[0].startswith(fixed) and row[0] not in FREE]:
        raise ConfigError(str(out), f"holds another model: {_listing(changed)}", fix=f"use --config {out / CONFIG}")


def _listing(changed: list[tuple[str, Any, Any]]) -> str:
    return ", ".join(f"{key} {old} -> {new}" for key, old, new in changed)


def _known_data(out: Path) -> str:
    known: str = read_facts(out / FACTS).get("data_sha256", "")
    if not known:
        raise CheckpointError(out / FACTS, "cannot be read: it has no data_sha256", fix="restore it from a copy")
    return known


def read_facts(path: Path) -> dict[str, Any]:
    """What run.json says of a run, verified; whatever it says has the type that readers expect."""
    verify_run(path.parent, path.name)
    value = read_object(path, error=CheckpointError)
    fix = "restore it from a copy"
    read_record(_Facts, value, where=path, error=CheckpointError, fix=fix)
    if value.get("ledger") is not None:
        read_record(_Cost, value["ledger"], key="ledger", where=path, error=CheckpointError, fix=fix)
    return value


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str


@dataclass(frozen=True, slots=True)
class _Parameters:
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Cost:
    tokens: float = 0.0
    paper: float = 0.0
    real: float = 0.0
    parameters: _Parameters | None = None


@dataclass(frozen=True, slots=True)
class _Op:
    op: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Execution:
    step: int
    ops: list[_Op]


@dataclass(frozen=True, slots=True)
class _Lengthened:
    step: int
    key: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class _Facts:
    electra: str = ""
    executions: list[_Execution] = field(default_factory=list)
    python: str = ""
    cpu: str = ""
    cores: int = 0
    data_sha256: str = ""
    data_folder: str | None = None
    lengthened: list[_Lengthened] = field(default_factory=list)
    argv: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    gpus: list[_Gpu] = field(default_factory=list)


def _without_folders(argument: str) -> str:
    """An argument with whole paths cut to their last part: where a person's files lie is nobody's business."""
    key, equals, value = argument.rpartition("=")
    return key + equals + (Path(value).name if Path(value).is_absolute() else value)
