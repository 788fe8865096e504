"""Small fine-tuned models for tests: real files, random weights that are large enough to tell answers apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from model_folders import SIZE, VOCAB

from electra.config.schema import ModelConfig
from electra.finetune.model_folder import About, FinetunedModel, load_finetuned, write_model
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.interop.network import Network
from electra.manifest import commit_folder
from electra.ops.dispatch import host_ops
from electra.tasks.rows import Kind
from electra.tokenizer.codec import Tokenizer

LABELS: dict[Kind, tuple[str, ...]] = {
    "classify": ("bad", "fair", "good"),
    "multilabel": ("animal", "food", "money", "place"),
    "regress": (),
    "tag": ("O", "B-WHO", "E-WHO", "I-WHO", "S-WHO"),
    "span": (),
    "pairs": (),
}


def make_tuned(kind: Kind, *, seed: int = 0, config: ModelConfig = SIZE, **changes: Any) -> tuple[TaskModel, About]:
    """A network with random weights, norms and biases included, and what its folder says about it."""
    about = About(task=kind, title=kind.upper(), kind=kind, labels=LABELS[kind], length=24, seed=seed)
    about = replace(about, scale=5.0 if kind == "regress" else 1.0, max_query=8, doc_stride=6)
    about = replace(about, pairs=kind == "pairs")
    about = replace(about, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(config, None, ops=host_ops())
    spec = HeadSpec(
        kind=kind,
        labels=about.labels,
        offset=about.offset,
        scale=about.scale,
        dropout=about.dropout,
        span_head=about.span_head,
    )
    tuned = TaskModel(network.embeddings, network.encoder, spec, ops=host_ops(), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.8 / config.width**0.5)
    return tuned.eval(), about


def save_finetuned(out: Path, network: TaskModel, **about: Any) -> None:
    """A folder with a model as `electra finetune` puts it there."""
    with commit_folder(out) as aside:
        write_model(aside, network, **about)


def save(out: Path, kind: Kind, *, config: ModelConfig = SIZE, **changes: Any) -> TaskModel:
    tuned, about = make_tuned(kind, config=config, **changes)
    save_finetuned(out, tuned, tokenizer=Tokenizer(VOCAB), config=config, about=about)
    return tuned


def loaded(out: Path, kind: Kind, **changes: Any) -> FinetunedModel:
    save(out, kind, **changes)
    return load_finetuned(out)
