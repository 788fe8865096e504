"""Where replacements come from: a masked transformer, two causal ones, corpus frequencies, or any token alike.

Shapes: B sequences, L length, M masked positions, V vocabulary (padded to whole blocks), D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from electra import rng
from electra.batches.masking import MaskedPositions
from electra.batches.schedules import straight_line
from electra.batches.sequences import Sequences
from electra.config.schema import GeneratorConfig, MaskingConfig
from electra.model.electra import GENERATOR_CALL_SITE, Electra
from electra.model.encoder import TwoTower
from electra.objective.base import Evaluation, gather_masked
from electra.ops import NEVER, Ops
from electra.ops.reference.linear_cross_entropy import pad_vocabulary, sample


class Samples(NamedTuple):
    """The generator's distributions at the masked positions, and one sample of each."""

    logits_MV: Tensor | None
    """Where they were asked for."""
    nll_M: Tensor
    """-log p of the original tokens."""
    sampled_M: Tensor
    gold_M: Tensor
    masked_ids_BL: Tensor
    """What the generator read."""
    hidden_MD: Tensor | None = None
    """The generator's hidden states at the masked positions, where it has any."""

    @property
    def best_M(self) -> Tensor:
        """The most likely tokens, from logits that were asked for."""
        assert self.logits_MV is not None
        return self.logits_MV.argmax(1)

    @property
    def logp_MV(self) -> Tensor:
        """The whole distribution; large, so for objectives that need more of it than the loss."""
        assert self.logits_MV is not None
        return self.logits_MV.float().log_softmax(1)


class Generator(Protocol):
    """A generator as the objectives use it."""

    @property
    def learns(self) -> bool:
        """Whether it has weights, and so a loss."""

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        """A distribution and a sample at every masked position; without `logits`, only the loss of the former."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedGenerator:
    """A transformer that reads the sequence with [MASK] at the masked positions (the paper's generator)."""

    masking: MaskingConfig
    config: GeneratorConfig
    mask_id: int
    ops: Ops
    progress: Tensor | None = None
    """The share of the run that is done, for a temperature that changes; None means the run's end."""
    learns = True

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        shares = {"mask_share": self.masking.masked_share, "random_share": 0.0}  # no random tokens: any `vocab` does
        masked_ids_BL = self.ops.apply_mask(batch.ids_BL, batch.keys_B, masked, **shares, mask_id=self.mask_id, vocab=1)
        keys_B = self.ops.fold_keys(batch.keys_B, GENERATOR_CALL_SITE) if dropout else None
        x_BLE = model.generator_embeddings(masked_ids_BL, batch.segments_BL, keys_B)
        hidden_BLD = model.masked_encoder(x_BLE, batch.lengths_B, keys_B, batch.spans)
        hidden_MD = gather_masked(hidden_BLD, masked.positions_BM)
        settings = Sampling.at(self.config, self.progress)
        return _sample(self.ops, model, hidden_MD, batch, masked, masked_ids_BL, settings, logits=logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoTowerGenerator:
    """Two causal transformers over the unmasked sequence; a token is predicted from both its sides."""

    config: GeneratorConfig
    ops: Ops
    progress: Tensor | None = None
    """As `MaskedGenerator`'s."""
    learns = True

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        return self.sample_from(model, self.states(model, batch, dropout=dropout), batch, masked, logits=logits)

    def states(self, model: Electra, batch: Sequences, *, dropout: bool) -> Tensor:
        """(B, L, 2D) hidden states of what stands around every token."""
        assert isinstance(model.generator, TwoTower)
        keys_B = self.ops.fold_keys(batch.keys_B, GENERATOR_CALL_SITE) if dropout else None
        x_BLE = model.generator_embeddings(batch.ids_BL, batch.segments_BL, keys_B)
        states_BLD: Tensor = model.generator(x_BLE, batch.lengths_B, keys_B, batch.spans)
        return states_BLD

    def sample_from(
        self, model: Electra, states_BLD: Tensor, batch: Sequences, masked: MaskedPositions, *, logits: bool = True
    ) -> Samples:
        """`sample` from states that were computed already."""
        hidden_MD = gather_masked(states_BLD, masked.positions_BM)
        settings = Sampling.at(self.config, self.progress)
        return _sample(self.ops, model, hidden_MD, batch, masked, batch.ids_BL, settings, logits=logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrequencyGenerator:
    """Tokens by how often they occur in the corpus, whatever stands around them; equal weights for `uniform`.

    Drawn by Walker's alias method: one table lookup and one comparison a sample, exact up to the draw's 23 bits.
    """

    logp_V: Tensor
    """For figures: a token that never occurred counts as half an occurrence, so that its loss is a number."""
    drawn_V: Tensor
    """Log-probabilities of the samples, temperature included."""
    keep_V: Tensor
    alias_V: Tensor
    disallow_correct: bool
    ops: Ops
    learns = False

    @staticmethod
    def of(
        weights_V: Tensor, config: GeneratorConfig, *, ops: Ops, device: torch.device | None = None
    ) -> FrequencyGenerator:
        """A generator that draws in proportion to `weights`; its tables are put on `device` once, for every step."""
        weights = weights_V.double().cpu()
        drawn = torch.where(weights > 0, (weights / weights.max()) ** (1 / config.temperature), 0.0)
        keep_V, alias_V = alias_tables(drawn)
        return FrequencyGenerator(
            logp_V=_padded((weights.clamp(min=0.5) / weights.sum()).log()).to(device),
            drawn_V=_padded((drawn / drawn.sum()).log().clamp(min=NEVER)).to(device),
            keep_V=keep_V.to(device),
            alias_V=alias_V.to(device),
            disallow_correct=config.disallow_correct,
            ops=ops,
        )

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        gold_M, keys_M = self.ops.masked_targets(batch.ids_BL, batch.keys_B, masked)
        if self.disallow_correct:
            sampled_M = sample(self.drawn_V.expand(len(gold_M), -1), keys_M, forbidden_M=gold_M)
        else:
            sampled_M = draw_alias(self.keep_V, self.alias_V, keys_M)
        logp_MV = self.logp_V.expand(len(gold_M), -1) if logits else None
        return Samples(logp_MV, -self.logp_V[gold_M], sampled_M, gold_M, batch.ids_BL)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenGenerator:
    """A generator that has learned all it will: no gradient, and no dropout, so that its distribution stays put."""

    generator: Generator
    learns = False

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        with torch.no_grad():
            return self.generator.sample(model, batch, masked, dropout=False, logits=logits)


def corrupt(ops: Ops, batch: Sequences, masked: MaskedPositions, samples: Samples, masking: MaskingConfig) -> Tensor:
    """(B, L) the sequences with the generator's samples at the masked positions."""
    average = masking.policy == "official"
    return ops.replace_tokens(batch.ids_BL, masked, samples.sampled_M, average=average)


def evaluate_generator(
    batch: Sequences, masked: MaskedPositions, samples: Samples, corrupted_ids_BL: Tensor | None = None
) -> Evaluation:
    """The generator's part of a held-out batch's figures; an objective adds those of its main network."""
    shape, gold_M = masked.used_BM.shape, samples.gold_M
    sample_correct_BM = None
    if corrupted_ids_BL is not None:
        sample_correct_BM = corrupted_ids_BL.gather(1, masked.positions_BM) == gold_M.view(shape)
    return Evaluation(
        used_BM=masked.used_BM,
        nll_BM=samples.nll_M.view(shape),
        correct_BM=(samples.best_M == gold_M).view(shape),
        original_ids_BL=batch.ids_BL,
        masked_ids_BL=samples.masked_ids_BL,
        sample_correct_BM=sample_correct_BM,
        corrupted_ids_BL=corrupted_ids_BL,
    )


def alias_tables(weights_V: Tensor) -> tuple[Tensor, Tensor]:
    """For each column of a table of equal columns: the share of it that is its own, and whose the rest is."""
    count, exact_V = len(weights_V), weights_V.double()
    share = (exact_V * count / exact_V.sum()).tolist()
    alias = list(range(count))
    small = [i for i, value in enumerate(share) if value < 1]
    large = [i for i, value in enumerate(share) if value >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        alias[low] = high
        share[high] -= 1 - share[low]
        if share[high] < 1:
            small.append(large.pop())
    for i in (*small, *large):  # what is left is 1 but for rounding
        share[i] = 1.0
    return torch.tensor(share, dtype=torch.float32), torch.tensor(alias)


def draw_alias(keep_V: Tensor, alias_V: Tensor, keys_M: Tensor) -> Tensor:
    """One index a key: a column by one draw, and its own or its alias's by another."""
    count = len(keep_V)
    bits_M2 = rng.bits(keys_M[:, None], rng.mix(torch.arange(2, dtype=torch.int32, device=keys_M.device)))
    column_M = ((bits_M2[:, 0].long() & 0xFFFFFFFF) * count) >> 32
    own_M = rng.uniform(bits_M2[:, 1]) < keep_V[column_M]
    return torch.where(own_M, column_M, alias_V[column_M])


def _padded(logp_V: Tensor) -> Tensor:
    """fp32, padded to whole blocks."""
    return pad_vocabulary(torch.zeros(len(logp_V), 1), logp_V.float())[1]


class Sampling(NamedTuple):
    """How a distribution is changed before sampling."""

    temperature: float | Tensor
    disallow_correct: bool

    @staticmethod
    def at(config: GeneratorConfig, progress: Tensor | None) -> Sampling:
        """The settings when a share of the run is done; at its end without one."""
        end, share = config.temperature, config.temperature_share
        if progress is None or not config.temperature_start:
            return Sampling(end, config.disallow_correct)
        now = straight_line(progress, start=config.temperature_start, end=end, share=share)
        return Sampling(now.float(), config.disallow_correct)

    @property
    def changes(self) -> bool:
        """Whether samples are not of the distribution itself."""
        return isinstance(self.temperature, Tensor) or self.temperature != 1.0 or self.disallow_correct


def _sample(
    ops: Ops,
    model: Electra,
    hidden_MD: Tensor,
    batch: Sequences,
    masked: MaskedPositions,
    masked_ids_BL: Tensor,
    settings: Sampling,
    *,
    logits: bool,
) -> Samples:
    assert model.generator_head is not None
    head, table_VE = model.generator_head, model.generator_embeddings.token.weight
    gold_M, keys_M = ops.masked_targets(batch.ids_BL, batch.keys_B, masked)
    # The fused sample is of the distribution itself; one that is changed before sampling is drawn apart.
    states_ME, keys = head.states(hidden_MD), None if settings.changes else keys_M
    all_logits = logits or settings.disallow_correct
    prediction = ops.linear_cross_entropy(states_ME, table_VE, head.bias, gold_M, keys, logits=all_logits)
    sampled_M = prediction.sampled_M
    if settings.disallow_correct:
        assert prediction.logits_MV is not None
        logp_MV = prediction.logits_MV.float().log_softmax(1)
        sampled_M = sample(logp_MV, keys_M, temperature=settings.temperature, forbidden_M=gold_M)
    elif settings.changes:  # (x · tableᵀ + bias) / temperature, without holding it in memory
        with torch.no_grad():
            cooled = (states_ME / settings.temperature).to(states_ME.dtype), table_VE, head.bias / settings.temperature
            sampled_M = ops.linear_cross_entropy(*cooled, gold_M, keys_M, logits=False).sampled_M
    assert sampled_M is not None
    logits_MV = prediction.logits_MV if logits else None
    return Samples(logits_MV, prediction.nll_M, sampled_M, gold_M, masked_ids_BL, hidden_MD)
