"""The networks that pre-training trains: generator and discriminator over shared embeddings, or one BERT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from electra.config.schema import Config, ModelConfig
from electra.model.encoder import Encoder, Shape, TwoTower, discriminator_shape, generator_shape
from electra.model.heads import CopyHead, DetectionHead, MaskedHead
from electra.model.layers import Embeddings, Norm
from electra.ops import Ops

# Call sites far apart give generator, discriminator and embeddings dropout patterns of their own.
GENERATOR_CALL_SITE, DISCRIMINATOR_CALL_SITE = 1_000_001, 2_000_002


class Electra(nn.Module):
    """Generator and discriminator; `generator.tying` says what they share.

    `generator_embeddings` are the discriminator's where they are shared. In two stages, where the generator's stay put
    while the discriminator's learn, each has tables of its own, and sharing means that the second stage begins with a
    copy. `generator` is None where it has no weights of its own: for frequencies and for `all`, where the
    discriminator's encoder is read in its place.
    """

    def __init__(
        self, config: Config, *, ops: Ops, dtype: torch.dtype = torch.float32, recompute: bool = False
    ) -> None:
        super().__init__()
        make = _Parts(config.model, ops, dtype, recompute)
        tying, learns = config.generator.tying, config.generator.kind in ("transformer", "two-tower")
        self.embeddings = make.embeddings(config.model.embedding)
        shape = generator_shape(config.model, config.generator)
        self.generator_embeddings = self.embeddings
        if learns and (tying in ("none", "gdes") or config.train.algorithm == "two-stage"):
            self.generator_embeddings = make.embeddings(shape.embedding)
        self.shares_token_table = tying == "gdes" and learns
        self.generator: Encoder | TwoTower | None = None
        if learns and tying != "all":
            encoder = make.two_tower if config.generator.kind == "two-tower" else make.encoder
            self.generator = encoder(shape, config.generator.dropout_scale)
        self.generator_head: MaskedHead | None = None
        if learns:
            inputs = 2 * shape.width if config.generator.kind == "two-tower" else shape.width
            self.generator_head = make.masked_head(inputs, shape.embedding)
        self.discriminator = make.encoder(discriminator_shape(config.model))
        self.discriminator_head = make.discriminator_head(config.objective.name)
        if config.objective.correction_weight:
            self.correction_head = make.masked_head(config.model.width, config.model.embedding)
        if config.objective.overlap_weight:
            self.overlap_head = nn.Linear(config.model.width, 2)
        if config.objective.contrastive_weight:
            self.sentence_head = nn.Linear(config.model.width, 1)
        if config.train.algorithm == "adversarial":
            self.baseline_head = nn.Linear(shape.width, 1)

    def embed(self, ids_BL: Tensor, segments_BL: Tensor, keys_B: Tensor | None) -> Tensor:
        """What the discriminator reads; the generator's token table, where it is read too, gets no gradient from it."""
        base_VE = self.generator_embeddings.token.weight.detach() if self.shares_token_table else None
        embedded_BLE: Tensor = self.embeddings(ids_BL, segments_BL, keys_B, base_VE)
        return embedded_BLE

    @property
    def token_table(self) -> Tensor:
        """The discriminator's token table, for a head that predicts tokens: what `embed` looks up."""
        own_VE: Tensor = self.embeddings.token.weight
        return own_VE + self.generator_embeddings.token.weight.detach() if self.shares_token_table else own_VE

    @property
    def masked_encoder(self) -> Encoder:
        """The encoder that reads masked text: the generator's, or the discriminator's where all is shared."""
        assert not isinstance(self.generator, TwoTower)
        return self.discriminator if self.generator is None else self.generator


class Bert(nn.Module):
    """The masked language modelling baseline: the discriminator's encoder with a masked-token head."""

    def __init__(
        self, config: Config, *, ops: Ops, dtype: torch.dtype = torch.float32, recompute: bool = False
    ) -> None:
        super().__init__()
        make, shape = _Parts(config.model, ops, dtype, recompute), discriminator_shape(config.model)
        self.embeddings = make.embeddings(shape.embedding)
        self.encoder = make.encoder(shape)
        self.head = make.masked_head(shape.width, shape.embedding)
        if config.objective.overlap_weight:
            self.overlap_head = nn.Linear(shape.width, 2)


def build_model(
    config: Config,
    *,
    ops: Ops,
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
    frequencies: Callable[[], Tensor] | None = None,
) -> Electra | Bert:
    """A freshly initialised network for the configured objective, the same for the same seed.

    It computes by `ops` in `dtype`, and with `recompute` saves the layers' inputs only. `frequencies` gives how often
    each token occurs: for `objective.unigram_start`, which is left out without them.
    """
    network = Bert if config.objective.name == "mlm" else Electra
    model = network(config, ops=ops, dtype=dtype, recompute=recompute)
    initialise(model, std=config.model.init_std, seed=config.seed)
    if isinstance(model, Electra) and model.shares_token_table:
        nn.init.zeros_(model.embeddings.token.weight)  # a difference from the generator's table, none at first
    logp_V = torch.full((config.model.vocab_size,), -math.log(config.model.vocab_size))
    if config.objective.unigram_start and frequencies is not None:
        smoothed_V = frequencies().double() + 0.5
        logp_V = (smoothed_V / smoothed_V.sum()).log().float()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, MaskedHead):
                    module.bias.copy_(logp_V)
    if isinstance(model, Electra) and config.objective.base_rate_start:
        # Learning the base rate through the layers pushes all tokens the same way, until they look alike to the head.
        head, start = model.discriminator_head, _base_rate(config, logp_V)
        if isinstance(head, DetectionHead):
            nn.init.constant_(head.score.bias, start)
        elif isinstance(head, CopyHead):
            nn.init.constant_(head.copy.bias, -start)
    return model


def _base_rate(config: Config, logp_V: Tensor) -> float:
    """The logit of the share of replaced tokens among those that the objective scores, before anything is learned."""
    p_V = logp_V.exp()
    if config.objective.name == "electric":  # which adds the odds of a sample itself, and log q
        return -float((p_V * logp_V).sum())
    rate = 1 - float((p_V * p_V).sum())  # of the samples: the others are the original token by chance
    if config.objective.name != "rtd-15":
        rate = min(rate, config.masking.first_rate)
    return math.log(rate / (1 - rate))


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


@dataclass(frozen=True, slots=True)
class _Parts:
    """Makes the parts of a network, all with the same ops and precision."""

    model: ModelConfig
    ops: Ops
    dtype: torch.dtype
    recompute: bool

    def embeddings(self, width: int) -> Embeddings:
        sizes = (self.model.vocab_size, self.model.positions, width)
        rotary = self.model.rotary
        return Embeddings(*sizes, dropout=self.model.dropout, ops=self.ops, dtype=self.dtype, rotary=rotary)

    def encoder(self, shape: Shape, dropout_scale: float = 1.0) -> Encoder:
        return Encoder(shape, **self._rates(dropout_scale), ops=self.ops, recompute=self.recompute)

    def two_tower(self, shape: Shape, dropout_scale: float = 1.0) -> TwoTower:
        return TwoTower(shape, **self._rates(dropout_scale), ops=self.ops, recompute=self.recompute)

    def _rates(self, scale: float) -> dict[str, float]:
        return {"dropout": scale * self.model.dropout, "attention_dropout": scale * self.model.attention_dropout}

    def masked_head(self, inputs: int, embedding: int) -> MaskedHead:
        return MaskedHead(inputs, embedding, self.model.vocab_size, ops=self.ops)

    def discriminator_head(self, objective: str) -> DetectionHead | MaskedHead | CopyHead:
        sizes = (self.model.width, self.model.embedding, self.model.vocab_size)
        if objective == "replace-mlm":
            return MaskedHead(*sizes, ops=self.ops)
        if objective == "all-tokens-mlm":
            return CopyHead(*sizes, ops=self.ops)
        return DetectionHead(self.model.width, ops=self.ops)
