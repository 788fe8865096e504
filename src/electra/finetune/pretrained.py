"""The encoder that fine-tuning starts from: any model folder, a fine-tuned one too, or the same network untrained."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electra.config.finetune import FinetuneConfig
from electra.config.schema import ModelConfig
from electra.errors import ConfigError
from electra.finetune.model_folder import FinetunedModel, load_finetuned
from electra.finetune.paper_settings import settings, size_of
from electra.interop.bundled import default_name
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.models import Loaded, load_model
from electra.interop.network import Network
from electra.model.electra import initialise
from electra.model.encoder import Encoder
from electra.model.layers import Embeddings
from electra.ops.dispatch import Kernels, host_ops
from electra.tasks.rows import Kind
from electra.tokenizer.codec import Tokenizer

SHORT_STRIDE = 4  # windows of a model with short sequences start a quarter of its length apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """An encoder to fine-tune, with its tokenizer; each run copies it."""

    name: str
    embeddings: Embeddings
    encoder: Encoder
    tokenizer: Tokenizer
    config: ModelConfig
    length: int
    """The longest sequence of its pre-training."""
    kernels: Kernels = "auto"
    """Which ops it computes by until it is fine-tuned."""

    @property
    def checksum(self) -> str:
        """Eight digits that change with the weights, since a folder keeps its name when its training goes on."""
        digest = 0
        for part in (self.embeddings, self.encoder):
            for parameter in part.parameters():
                digest = zlib.crc32(parameter.detach().cpu().contiguous().numpy().data, digest)
        return f"{digest:08x}"

    def untrained(self, *, seed: int = 0) -> Pretrained:
        """The same network with fresh weights."""
        network = Network(self.config, None, ops=host_ops(self.kernels))
        embeddings, encoder = network.embeddings, network.encoder
        for part in (embeddings, encoder):
            initialise(part, std=self.config.init_std, seed=seed)
        return replace(self, name=f"{self.name}, untrained", embeddings=embeddings, encoder=encoder)


def default_model() -> Path:
    """The model that is meant where none is named: the largest of the package, refused where there is none."""
    name = default_name()
    if name is None:
        fix = "give a run, a checkpoint, an export, a transformers ELECTRA folder or a hub name"
        raise ConfigError("--model", "is missing, and this installation has no model of its own", fix=fix)
    return Path(name)


def load_pretrained(path: Path) -> Pretrained:
    """The encoder of a run folder, a checkpoint, an exported, a `transformers` or a fine-tuned folder."""
    return of_finetuned(load_finetuned(path)) if is_finetuned(path) else of_loaded(load_model(path))


def of_finetuned(model: FinetunedModel) -> Pretrained:
    """The encoder of a fine-tuned model."""
    return Pretrained(
        name=model.path.name,
        embeddings=model.network.embeddings,
        encoder=model.network.encoder,
        tokenizer=model.tokenizer,
        config=model.config,
        length=model.about.pretrained_length or model.about.length,
        kernels=model.about.kernels,
    )


def to_encode(path: Path) -> Pretrained:
    """The encoder of a folder as `encode` uses it."""
    return embedder(load_finetuned(path)) if is_finetuned(path) else of_loaded(load_model(path))


def embedder(model: FinetunedModel) -> Pretrained:
    """The encoder of a fine-tuned model as `encode` uses it: one of pairs reads as much at once as in fine-tuning."""
    encoder = of_finetuned(model)
    return replace(encoder, length=model.about.length) if model.about.kind == "pairs" else encoder


def of_loaded(model: Loaded) -> Pretrained:
    """The encoder of a pre-trained model."""
    return Pretrained(
        name=model.path.resolve().name,
        embeddings=model.module.embeddings,
        encoder=model.module.encoder,
        tokenizer=model.tokenizer,
        config=model.config,
        length=model.length,
        kernels=model.kernels,
    )


def settings_for(base: Pretrained, task: str, *, kind: Kind) -> FinetuneConfig:
    """The paper's settings for a task and this model's size, with sequences no longer than in its pre-training."""
    config = settings(task, size_of(base.config), kind=kind)
    if config.length <= base.length:
        return config
    # Short windows must overlap too, or answers at their edges are lost.
    stride = min(config.doc_stride, max(1, base.length // SHORT_STRIDE))
    query = min(config.max_query, base.length // 2)
    return replace(config, length=base.length, doc_stride=stride, max_query=query)


def untrained_positions(base: Pretrained, sequences: Sequence[Sequence[int]], *, what: str) -> str:
    """A warning where sequences are longer than those of pre-training, or an empty string."""
    longest = max(map(len, sequences), default=0)
    if longest <= base.length:
        return ""
    count = sum(len(ids) > base.length for ids in sequences)
    return (
        f"warning: {count:,} of {len(sequences):,} {what} are longer than the {base.length} tokens that {base.name} was"
        f" pre-trained on: positions {base.length + 1} to {longest} start untrained"
        f" (length={base.length} cuts them; pre-training with data.length={longest} trains them)"
    )


def check_length(base: Pretrained, length: int) -> None:
    """Refuse sequences that the model has no positions for."""
    if length > base.config.positions:
        raise ConfigError(
            "length",
            f"{length} is more than the model's {base.config.positions} positions",
            fix=f"length={base.config.positions}",
        )
