"""Where a fine-tuning run starts from: any model folder, a fine-tuned one too, or the same network untrained."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from electra.config.finetune import FinetuneConfig
from electra.config.schema import ModelConfig
from electra.errors import ConfigError
from electra.finetune.folder import is_tuned, load_tuned
from electra.finetune.rows import Kind
from electra.finetune.settings import settings, size_of
from electra.interop.models import load_model
from electra.model.electra import initialise
from electra.model.encoder import Encoder
from electra.model.layers import Embeddings
from electra.tokenizer.codec import Tokenizer

SHORT_STRIDE = 4  # windows of a short model start this share of its length apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """An encoder to fine-tune, with its tokenizer; each run copies it."""

    name: str
    embeddings: Embeddings
    encoder: Encoder
    tokenizer: Tokenizer
    config: ModelConfig
    length: int
    """The longest sequence seen in pre-training."""

    @property
    def checksum(self) -> str:
        """Eight digits that change with the weights: a folder's name stays when its training goes on."""
        found = 0
        for part in (self.embeddings, self.encoder):
            for parameter in part.parameters():
                found = zlib.crc32(parameter.detach().cpu().contiguous().numpy().data, found)
        return f"{found:08x}"

    def untrained(self, *, seed: int = 0) -> Base:
        """The same network with fresh weights."""
        embeddings = Embeddings(
            self.config.vocab_size, self.config.positions, self.config.embedding, self.config.dropout
        )
        encoder = Encoder(
            self.encoder.shape, dropout=self.config.dropout, attention_dropout=self.config.attention_dropout
        )
        for part in (embeddings, encoder):
            initialise(part, std=self.config.init_std, seed=seed)
        return replace(self, name=f"{self.name}, untrained", embeddings=embeddings, encoder=encoder)


def load_base(path: Path) -> Base:
    """The encoder of a run folder, a checkpoint, an exported, a `transformers` or a fine-tuned folder."""
    if is_tuned(path):
        tuned = load_tuned(path)
        return Base(
            name=tuned.path.name,
            embeddings=tuned.tuned.embeddings,
            encoder=tuned.tuned.encoder,
            tokenizer=tuned.tokenizer,
            config=tuned.config,
            length=tuned.about.pretrained_length or tuned.about.length,
        )
    loaded = load_model(path)
    return Base(
        name=path.resolve().name,
        embeddings=loaded.module.embeddings,
        encoder=loaded.module.encoder,
        tokenizer=loaded.tokenizer,
        config=loaded.config,
        length=loaded.length,
    )


def settings_for(base: Base, task: str, *, kind: Kind) -> FinetuneConfig:
    """The paper's settings for a task and this model's size, no longer than what the model was trained on."""
    config = settings(task, size_of(base.config), kind=kind)
    if config.length <= base.length:
        return config
    # The windows of a short model must overlap, or answers at their edges are lost.
    stride = min(config.doc_stride, max(1, base.length // SHORT_STRIDE))
    query = min(config.max_query, base.length // 2)
    return replace(config, length=base.length, doc_stride=stride, max_query=query)


def check_length(base: Base, config: FinetuneConfig) -> None:
    """Refuse sequences that the model has no positions for."""
    if config.length > base.config.positions:
        raise ConfigError(
            "length",
            f"{config.length} is more than the model's {base.config.positions} positions",
            fix=f"length={base.config.positions}",
        )
