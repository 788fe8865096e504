"""A fine-tuned model as a folder: task.json, model.safetensors and the tokenizer's files.

A fine-tuning run holds one such folder a seed (`seed-0`, `seed-1`, ...). Loading the run loads the seed with the
median score, which is the score that is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor

from electra.checkpoint.tensors import read_tensors, write_tensors
from electra.config.schema import ModelConfig
from electra.errors import CheckpointError, DataError
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.fsio import commit_dir, read_json, sha256_file, write_json
from electra.interop.network import Network
from electra.ops.dispatch import Kernels, host_ops
from electra.tasks.rows import Kind
from electra.tokenizer.codec import Tokenizer

FORMAT = 1
TASK_FILE, WEIGHTS_FILE = "task.json", "model.safetensors"
_SEED = re.compile(r"seed-(\d+)")
_ACCEPTED = "give a run folder of electra finetune or one of its seed-N folders"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """The task of a fine-tuned model, how its inputs are cut, and its scores."""

    task: str
    """As on the command line: `cola`."""
    title: str
    """As in tables: `CoLA`."""
    kind: Kind
    labels: tuple[str, ...] = ()
    """Classes or tags in the order of the outputs."""
    scale: float = 1.0
    """Divisor of a regression's labels in training."""
    pairs: bool = False
    """Whether it was trained on pairs of texts."""
    length: int = 128
    """Longest sequence in tokens."""
    max_query: int = 64
    doc_stride: int = 128
    beam: int = 20
    n_best: int = 20
    max_answer: int = 30
    null_threshold: float | None = None
    """Questions only: above this no-answer score the prediction is no answer; None where it always answers."""
    dropout: float = 0.1
    """On the head's inputs."""
    seed: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    """In percent, on the development set."""
    metrics: tuple[str, ...] = ()
    """Names of the scores, the reported one first."""
    source: str = ""
    """Name of the model that was fine-tuned."""
    pretrained_length: int = 0
    """The longest sequence in pre-training; 0 where it is not known."""
    kernels: Kernels = "auto"
    """Which ops it was fine-tuned by, and predicts by."""

    @property
    def score(self) -> float | None:
        """The reported score; None where it is missing or not finite."""
        value = self.scores.get(self.metrics[0]) if self.metrics else None
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetunedModel:
    """A fine-tuned model to use; as loaded on the CPU, in fp32, without dropout."""

    network: TaskModel
    tokenizer: Tokenizer
    config: ModelConfig
    about: About
    path: Path
    """The folder that was read: one seed's."""


def save_finetuned(
    out: Path,
    network: TaskModel,
    *,
    tokenizer: Tokenizer,
    config: ModelConfig,
    about: About,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a new model folder; `weights` by the network's names where its own are not the fp32 ones."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(out, "exists already", fix="choose a new folder")
    own = dict(network.named_parameters()) if weights is None else weights
    tensors = {name: own[name].detach().to(torch.float32) for name, _ in network.named_parameters()}
    with commit_dir(out) as aside:
        write_tensors(aside / WEIGHTS_FILE, tensors)
        tokenizer.save(aside)
        values = asdict(about)
        values["scores"] = {name: value if math.isfinite(value) else None for name, value in about.scores.items()}
        described = {
            "format": FORMAT,
            "about": values,
            "model": asdict(config),
            "tokenizer": tokenizer.fingerprint,
            "sha256": {WEIGHTS_FILE: sha256_file(aside / WEIGHTS_FILE)},
        }
        write_json(aside / TASK_FILE, described)


def load_finetuned(folder: Path) -> FinetunedModel:
    """The model of a folder, or of a whole fine-tuning run: then the seed of the median score."""
    path = model_folder(folder)
    described = _described(path)
    about, config = _about(path, described), _read(ModelConfig, described, "model", where=path / TASK_FILE)
    _check_sizes(config, about, where=path / TASK_FILE)
    try:
        tokenizer = Tokenizer.load(path)
    except DataError as error:
        raise CheckpointError(path, f"its tokenizer cannot be read: {error}") from error
    if tokenizer.fingerprint != described.get("tokenizer") or tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(path, "its tokenizer is not the one that it was fine-tuned with", fix="copy it again")
    spec = HeadSpec(kind=about.kind, labels=about.labels, scale=about.scale, dropout=about.dropout)
    with torch.device("meta"):
        ops = host_ops(about.kernels)
        parts = Network(config, None, ops=ops)
        network = TaskModel(parts.embeddings, parts.encoder, spec, ops=ops)
    expected = {name: parameter.shape for name, parameter in network.named_parameters()}
    tensors = read_tensors(path / WEIGHTS_FILE, expect=expected)
    digests = described.get("sha256")
    if not isinstance(digests, dict) or digests.get(WEIGHTS_FILE) != sha256_file(path / WEIGHTS_FILE):
        raise CheckpointError(path / WEIGHTS_FILE, "is damaged: its sha256 differs", fix="copy it again")
    network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()}, assign=True)
    return FinetunedModel(network=network.eval(), tokenizer=tokenizer, config=config, about=about, path=path)


def is_finetuned(folder: Path) -> bool:
    """Whether this is a fine-tuned model, or a run that holds some."""
    return (folder / TASK_FILE).is_file() or bool(_seeds(folder))


def model_folder(folder: Path) -> Path:
    """The folder itself, or for a run the one of its seed with the median score, of two middle ones the lower."""
    if (folder / TASK_FILE).is_file():
        return folder
    if not folder.is_dir():
        raise CheckpointError(folder, "no such folder", fix=_ACCEPTED)
    seeds = _seeds(folder)
    if not seeds:
        inside = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and is_finetuned(entry))
        fix = f"it holds several: {', '.join(inside[:9])}; name one" if inside else _ACCEPTED
        raise CheckpointError(folder, "is not a fine-tuned model", fix=fix)
    scores = [_about(seed, _described(seed)).score for seed in seeds]
    ranked = sorted(range(len(seeds)), key=lambda at: (-math.inf if (score := scores[at]) is None else score, at))
    return seeds[ranked[(len(seeds) - 1) // 2]]


def _seeds(folder: Path) -> list[Path]:
    """The whole seed folders of a run, by number."""
    if not folder.is_dir():
        return []
    found = {entry: name for entry in folder.iterdir() if (name := _SEED.fullmatch(entry.name))}
    return sorted((path for path in found if (path / TASK_FILE).is_file()), key=lambda path: int(found[path][1]))


def _described(path: Path) -> dict[str, Any]:
    where = path / TASK_FILE
    try:
        value = read_json(where)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(where, f"cannot be read: {error}") from error
    version = value.get("format") if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(where, "has no format number", fix=_ACCEPTED)
    if version > FORMAT:
        reason = f"is of format {version}, this version reads up to {FORMAT}"
        raise CheckpointError(where, reason, fix="update electra")
    assert isinstance(value, dict)
    return value


def _about(path: Path, described: dict[str, Any]) -> About:
    return _read(About, described, "about", where=path / TASK_FILE)


def _check_sizes(config: ModelConfig, about: About, *, where: Path) -> None:
    sizes = {name: value for name, value in asdict(config).items() if isinstance(value, int)}
    if low := next((name for name, value in sizes.items() if value < 1), None):
        raise CheckpointError(where, f"model.{low} is {sizes[low]}, which is too small")
    if config.width % config.heads:
        raise CheckpointError(where, f"{config.heads} heads do not divide the width {config.width}")
    if not 5 <= about.length <= config.positions:
        raise CheckpointError(where, f"length is {about.length}, the model has {config.positions} positions")
    if about.kind in ("classify", "multilabel", "tag") and not about.labels:
        raise CheckpointError(where, f"has no labels, which '{about.kind}' needs")


Read = TypeVar("Read", About, ModelConfig)


def _read(cls: type[Read], described: dict[str, Any], key: str, *, where: Path) -> Read:
    """The dataclass in one part of task.json; keys of a later version are left out."""
    values = described.get(key)
    if not isinstance(values, dict):
        raise CheckpointError(where, f"has no '{key}'")
    hints = get_type_hints(cls)
    read: dict[str, Any] = {}
    for one in fields(cls):
        if one.name in values:
            read[one.name] = _typed(values[one.name], hints[one.name], f"{key}.{one.name}", where=where)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise CheckpointError(where, f"has no '{key}.{one.name}'")
    return cls(**read)


def _typed(value: Any, kind: Any, name: str, *, where: Path) -> Any:
    whole, number = type(value) is int, type(value) in (int, float)
    if kind in (Kind, Kernels):
        fits = value in get_args(kind)
    elif kind == tuple[str, ...]:
        fits = isinstance(value, list) and all(isinstance(part, str) for part in value)
        value = tuple(value) if fits else value
    elif kind == dict[str, float]:
        fits = isinstance(value, dict) and all(part is None or type(part) in (int, float) for part in value.values())
        value = {one: math.nan if part is None else float(part) for one, part in value.items()} if fits else value
    elif kind == float | None:
        fits = value is None or number
    else:
        fits = {int: whole, float: number, bool: isinstance(value, bool), str: isinstance(value, str)}[kind]
    if not fits:
        raise CheckpointError(where, f"{name} is {str(value)[:40]!r}, which cannot be")
    return value
