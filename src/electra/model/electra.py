"""The networks that pre-training trains: generator and discriminator over shared embeddings, or one BERT."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from electra.config.schema import Config
from electra.model.encoder import Encoder, Shape, discriminator_shape, generator_shape
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import Embeddings, Norm

# Sites far apart give generator, discriminator and embeddings dropout patterns of their own.
GENERATOR_SITE, DISCRIMINATOR_SITE = 1_000_001, 2_000_002


class Electra(nn.Module):
    """Generator and discriminator; `tying` says which embeddings the generator reads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = _embeddings(config)
        self.generator_embeddings = self.embeddings
        shape = generator_shape(config.model, config.generator)
        self.generator = _encoder(shape, config)
        self.generator_head = MaskedHead(shape.width, shape.embedding, config.model.vocab_size)
        self.discriminator = _encoder(discriminator_shape(config.model), config)
        self.discriminator_head = DetectionHead(config.model.width)


class Bert(nn.Module):
    """The masked language modelling baseline: the discriminator's encoder with a masked-token head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = _embeddings(config)
        shape = discriminator_shape(config.model)
        self.encoder = _encoder(shape, config)
        self.head = MaskedHead(shape.width, shape.embedding, config.model.vocab_size)


def build_model(config: Config) -> Electra | Bert:
    """A freshly initialised network for the configured objective, the same for the same seed."""
    model = Bert(config) if config.objective.name == "mlm" else Electra(config)
    initialise(model, std=config.model.init_std, seed=config.seed)
    if isinstance(model, Electra) and config.objective.base_rate_start:
        # Learning the base rate through the layers pushes all tokens the same way, until they look alike to the head.
        rate = config.masking.rate
        nn.init.constant_(model.discriminator_head.score.bias, math.log(rate / (1 - rate)))
    return model


def initialise(model: nn.Module, *, std: float, seed: int) -> None:
    """Truncated normal for tables and layers; Glorot for embedding projections and the detection score."""
    generator = torch.Generator().manual_seed(seed)
    glorot = {id(m.project) for m in model.modules() if isinstance(m, Encoder) and m.project is not None}
    glorot |= {id(m.score) for m in model.modules() if isinstance(m, DetectionHead)}
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                if id(module) in glorot:
                    bound = math.sqrt(6.0 / (module.in_features + module.out_features))
                    module.weight.uniform_(-bound, bound, generator=generator)
                else:
                    _truncated_normal(module.weight, std, generator)
                module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                _truncated_normal(module.weight, std, generator)
            elif isinstance(module, Norm):
                module.weight.fill_(1.0)
                module.bias.zero_()


def _truncated_normal(weight: Tensor, std: float, generator: torch.Generator) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def _embeddings(config: Config) -> Embeddings:
    model = config.model
    return Embeddings(model.vocab_size, model.positions, model.embedding, model.dropout)


def _encoder(shape: Shape, config: Config) -> Encoder:
    return Encoder(shape, dropout=config.model.dropout, attention_dropout=config.model.attention_dropout)
