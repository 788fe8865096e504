"""A fine-tuned model as a folder: task.json, model.safetensors, the tokenizer's files and manifest.json.

A fine-tuning run holds one such folder a seed (`seed-0`, `seed-1`, ...). Loading the run loads the seed with the
median score, which is the score that is reported.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.checkpoint.tensors import read_tensors, require_finite, write_tensors
from electra.config.schema import ModelConfig
from electra.errors import CheckpointError, DataError
from electra.finetune.task_model import HeadSpec, SpanHeadKind, TaskModel
from electra.fsio import read_object, sha256_file, write_json
from electra.interop.bundled import is_bundled
from electra.interop.finetuned_folder import TASK_FILE, is_finetuned, seed_folders
from electra.interop.network import Network, shapes_only
from electra.interop.settings import check_sizes
from electra.manifest import FILE as MANIFEST
from electra.manifest import Manifest, read_manifest, read_or_say
from electra.metrics.spread import median_place
from electra.ops.dispatch import Kernels, host_ops
from electra.records import read_record
from electra.tasks.rows import Kind
from electra.tokenizer.codec import CONFIG_FILE, TOKENIZER_FILE, VOCAB_FILE, Tokenizer

FORMAT = 2
"""Of task.json: from 2 on, the folder has a manifest."""
WEIGHTS_FILE = "model.safetensors"
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
    offset: float = 0.0
    """Taken from a regression's labels in training; 0 in folders of before this key."""
    scale: float = 1.0
    """Divisor of what is left of them."""
    pairs: bool = False
    """Whether it was trained on pairs of texts."""
    length: int = 128
    """Longest sequence in tokens."""
    max_query: int = 64
    doc_stride: int = 128
    beam: int = 20
    n_best: int = 20
    max_answer: int = 30
    span_head: SpanHeadKind = "joint"
    null_threshold: float | None = None
    """Questions only: above this no-answer score the prediction is no answer; None where it always answers."""
    dropout: float = 0.1
    """On the head's inputs."""
    seed: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    """In percent, on the development set."""
    metrics: tuple[str, ...] = ()
    """Names of the scores, the reported one first."""
    columns: dict[str, str] = field(default_factory=dict)
    """Of a table it was fine-tuned on: the columns by role, `text`, `pair` and `label`, and the labels' `separator`."""
    source: str = ""
    """Name of the model that was fine-tuned."""
    pretrained_length: int = 0
    """The longest sequence in pre-training; 0 where it is not known."""
    trained_length: int = 0
    """The longest sequence in pre-training and fine-tuning; 0 where it is not known."""
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


def write_model(
    folder: Path,
    network: TaskModel,
    *,
    tokenizer: Tokenizer,
    config: ModelConfig,
    about: About,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Put a model's files into a folder that gets its manifest from the caller."""
    own = dict(network.named_parameters()) if weights is None else weights
    tensors = {name: own[name].detach().to(torch.float32) for name, _ in network.named_parameters()}
    write_tensors(folder / WEIGHTS_FILE, tensors)
    tokenizer.save(folder)
    described = {
        "format": FORMAT,
        "about": asdict(about),
        "model": asdict(config),
        "tokenizer": tokenizer.fingerprint,
    }
    write_json(folder / TASK_FILE, described)


def load_finetuned(folder: Path) -> FinetunedModel:
    """The model of a folder, or of a whole fine-tuning run: then the seed of the median score."""
    path = model_folder(folder)
    described = _described(path)
    about, where = _about(path, described), path / TASK_FILE
    config = read_record(ModelConfig, described.get("model"), key="model", where=where, error=CheckpointError)
    _check_sizes(config, about, where=where)
    sums = _sums(path, described)
    if sums is not None:
        tokenizers = (name for name in (VOCAB_FILE, TOKENIZER_FILE, CONFIG_FILE) if name in sums.files)
        sums.verify(WEIGHTS_FILE, *tokenizers)
    try:
        tokenizer = Tokenizer.load(path)
    except DataError as error:
        raise CheckpointError(path, f"its tokenizer cannot be read: {error}") from error
    if tokenizer.fingerprint != described.get("tokenizer") or tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(path, "its tokenizer is not the one that it was fine-tuned with", fix="copy it again")
    spec = HeadSpec(
        kind=about.kind,
        labels=about.labels,
        offset=about.offset,
        scale=about.scale,
        dropout=about.dropout,
        span_head=about.span_head,
    )
    with shapes_only():
        ops = host_ops(about.kernels)
        parts = Network(config, None, ops=ops)
        network = TaskModel(parts.embeddings, parts.encoder, spec, ops=ops)
    expected = {name: parameter.shape for name, parameter in network.named_parameters()}
    tensors = read_tensors(path / WEIGHTS_FILE, expect=expected)
    require_finite(tensors, where=path / WEIGHTS_FILE)
    network.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()}, assign=True)
    return FinetunedModel(network=network.eval(), tokenizer=tokenizer, config=config, about=about, path=path)


def model_folder(folder: Path) -> Path:
    """The folder itself, or for a run the one of its seed with the median score, of two middle ones the lower."""
    if (folder / TASK_FILE).is_file():
        return folder
    if is_bundled(folder) or (folder / "config.toml").is_file():
        fix = f"fine-tune it first: electra finetune TASK FILE --model {shlex.quote(str(folder))}"
        raise CheckpointError(folder, "is not a fine-tuned model but a pre-trained one", fix=fix)
    if not folder.is_dir():
        raise CheckpointError(folder, "is a file" if folder.is_file() else "no such folder", fix=_ACCEPTED)
    seeds = seed_folders(folder)
    if not seeds:
        inside = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and is_finetuned(entry))
        fix = f"it holds several: {', '.join(inside[:9])}; name one" if inside else _ACCEPTED
        raise CheckpointError(folder, "is not a fine-tuned model", fix=fix)
    return seeds[median_place([_about(seed, _described(seed)).score for seed in seeds])]


def _sums(path: Path, described: dict[str, Any]) -> Manifest | None:
    """The sums of a model's files; before format 2 only the weights' own, in task.json."""
    sums = read_manifest(path)
    if sums is not None:
        return sums
    if described["format"] > 1:
        raise CheckpointError(path / MANIFEST, "is missing", fix="copy the folder again")
    digests = described.get("sha256")
    digest = str(digests.get(WEIGHTS_FILE)) if isinstance(digests, dict) else ""
    if digest != sha256_file(path / WEIGHTS_FILE):
        raise CheckpointError(
            path / WEIGHTS_FILE, "is damaged: its sha256 is not the recorded one", fix="copy it again"
        )
    return read_or_say(path)


def _described(path: Path) -> dict[str, Any]:
    where = path / TASK_FILE
    if (sums := read_manifest(path)) is not None:
        sums.verify(TASK_FILE)
    value = read_object(where, error=CheckpointError, fix=_ACCEPTED)
    version = value.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(where, "has no format number", fix=_ACCEPTED)
    if version > FORMAT:
        reason = f"is of format {version}, this version reads up to {FORMAT}"
        raise CheckpointError(where, reason, fix="update electra")
    return value


def _about(path: Path, described: dict[str, Any]) -> About:
    return read_record(About, described.get("about"), key="about", where=path / TASK_FILE, error=CheckpointError)


def _check_sizes(config: ModelConfig, about: About, *, where: Path) -> None:
    check_sizes(config, where)
    if not 0 <= about.dropout < 1:
        raise CheckpointError(where, f"dropout is {about.dropout}, not from 0 and below 1")
    if about.scale <= 0:
        raise CheckpointError(where, f"scale is {about.scale}, not above 0")
    if min(about.max_query, about.doc_stride, about.beam, about.n_best, about.max_answer) < 1:
        raise CheckpointError(where, "a setting for questions is below 1")
    if not 5 <= about.length <= config.positions:
        raise CheckpointError(where, f"length is {about.length}, the model has {config.positions} positions")
    if about.kind in ("classify", "multilabel", "tag") and not about.labels:
        raise CheckpointError(where, f"has no labels, which '{about.kind}' needs")
