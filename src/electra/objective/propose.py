"""Who proposes the replacements: a network, two causal ones, the corpus's frequencies, or chance.

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary (padded to whole blocks), D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from electra import rng
from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import GeneratorConfig, MaskingConfig
from electra.model.electra import GENERATOR_SITE, Electra
from electra.model.encoder import TwoTower
from electra.objective.base import Evaluation, gather_slots
from electra.objective.corrupt import NEVER, gold_and_keys, mask, pad_vocabulary, replace, sample
from electra.objective.words import foretell


class Proposal(NamedTuple):
    """What stands at the slots instead of the text: a distribution, and a sample of it."""

    logits_MV: Tensor | None
    """Where they were asked for."""
    nll_M: Tensor
    """What the distribution says of the tokens that stood there: minus their log-probabilities."""
    sampled_M: Tensor
    gold_M: Tensor
    shown_BL: Tensor
    """What the generator read."""
    hidden_MD: Tensor | None = None
    """The generator's states at the slots, where it has any."""

    @property
    def best_M(self) -> Tensor:
        """The likeliest tokens, by logits that were asked for."""
        assert self.logits_MV is not None
        return self.logits_MV.argmax(1)

    @property
    def logp_MV(self) -> Tensor:
        """The whole distribution: for those who need more of it than the loss, since it is large."""
        assert self.logits_MV is not None
        return self.logits_MV.float().log_softmax(1)


class Proposer(Protocol):
    """A generator as the objectives see it."""

    @property
    def learns(self) -> bool:
        """Whether it has weights, and so a loss."""

    def propose(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool, logits: bool = True
    ) -> Proposal:
        """A distribution and a sample for every slot; with `logits` false only what it says of the right token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedNetwork:
    """A transformer that reads the text with the slots masked (the paper's generator)."""

    masking: MaskingConfig
    generator: GeneratorConfig
    mask_id: int
    learns = True

    def propose(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool, logits: bool = True
    ) -> Proposal:
        shown_BL = mask(batch, slots, masked_share=self.masking.masked_share, mask_id=self.mask_id)
        keys_B = rng.fold(batch.keys_B, GENERATOR_SITE) if dropout else None
        x_BLE = model.generator_embeddings(shown_BL, batch.segments_BL, keys_B)
        hidden_BLD = model.masked_encoder(x_BLE, batch.lengths_B, keys_B, batch.spans)
        hidden_MD = gather_slots(hidden_BLD, slots.positions_BS)
        return _from_states(model, hidden_MD, batch, slots, shown_BL, self.generator, logits=logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoTowerNetwork:
    """Two causal transformers over the unmasked text; a token is foretold from what stands on both its sides."""

    generator: GeneratorConfig
    learns = True

    def propose(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool, logits: bool = True
    ) -> Proposal:
        return self.propose_from(model, self.states(model, batch, dropout=dropout), batch, slots, logits=logits)

    def states(self, model: Electra, batch: Sequences, *, dropout: bool) -> Tensor:
        """(B, L, 2D) what stands around every token says of it."""
        assert isinstance(model.generator, TwoTower)
        keys_B = rng.fold(batch.keys_B, GENERATOR_SITE) if dropout else None
        x_BLE = model.generator_embeddings(batch.ids_BL, batch.segments_BL, keys_B)
        states_BLD: Tensor = model.generator(x_BLE, batch.lengths_B, keys_B, batch.spans)
        return states_BLD

    def propose_from(
        self, model: Electra, states_BLD: Tensor, batch: Sequences, slots: Slots, *, logits: bool = True
    ) -> Proposal:
        """`propose` with states that were computed already."""
        hidden_MD = gather_slots(states_BLD, slots.positions_BS)
        return _from_states(model, hidden_MD, batch, slots, batch.ids_BL, self.generator, logits=logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frequencies:
    """Tokens by how often they occur in the corpus, whatever stands around them; equal weights for `uniform`.

    Drawn by Walker's alias method: one table lookup and one comparison a sample, exact up to the draw's 23 bits.
    """

    logp_V: Tensor
    """For figures: a token that was never seen counts as half a sighting, so that its loss is a number."""
    drawn_V: Tensor
    """Log-probabilities of the samples, temperature included."""
    keep_V: Tensor
    alias_V: Tensor
    disallow_correct: bool
    learns = False

    @staticmethod
    def of(weights_V: Tensor, generator: GeneratorConfig, *, device: torch.device | None = None) -> Frequencies:
        """A proposer that draws in proportion to `weights`; its tables are put on `device` once, for every step."""
        weights = weights_V.double().cpu()
        drawn = torch.where(weights > 0, (weights / weights.max()) ** (1 / generator.temperature), 0.0)
        keep_V, alias_V = alias_tables(drawn)
        return Frequencies(
            logp_V=_padded((weights.clamp(min=0.5) / weights.sum()).log()).to(device),
            drawn_V=_padded((drawn / drawn.sum()).log().clamp(min=NEVER)).to(device),
            keep_V=keep_V.to(device),
            alias_V=alias_V.to(device),
            disallow_correct=generator.disallow_correct,
        )

    def propose(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool, logits: bool = True
    ) -> Proposal:
        gold_M, keys_M = gold_and_keys(batch, slots)
        if self.disallow_correct:
            sampled_M = sample(self.drawn_V.expand(len(gold_M), -1), keys_M, forbidden_M=gold_M)
        else:
            sampled_M = draw_alias(self.keep_V, self.alias_V, keys_M)
        logp_MV = self.logp_V.expand(len(gold_M), -1) if logits else None
        return Proposal(logp_MV, -self.logp_V[gold_M], sampled_M, gold_M, batch.ids_BL)


def _padded(logp_V: Tensor) -> Tensor:
    """Single precision, filled up to whole blocks."""
    return pad_vocabulary(torch.zeros(len(logp_V), 1), logp_V.float())[1]


def put_samples(batch: Sequences, slots: Slots, proposal: Proposal, masking: MaskingConfig) -> Tensor:
    """(B, L) the text with the generator's samples at the slots."""
    sampled_BS = proposal.sampled_M.view(slots.positions_BS.shape)
    return replace(batch, slots, sampled_BS, official=masking.policy == "official")


def judge_proposal(batch: Sequences, slots: Slots, proposal: Proposal, seen_BL: Tensor | None = None) -> Evaluation:
    """The generator's part of a held-out batch's figures; `seen_BL` is the text with its samples, where there is one.

    An objective adds what its main network says of it.
    """
    shape, gold_M = slots.used_BS.shape, proposal.gold_M
    sampled_right_BS = None if seen_BL is None else seen_BL.gather(1, slots.positions_BS) == gold_M.view(shape)
    return Evaluation(
        used_BS=slots.used_BS,
        nll_BS=proposal.nll_M.view(shape),
        right_BS=(proposal.best_M == gold_M).view(shape),
        original_BL=batch.ids_BL,
        shown_BL=proposal.shown_BL,
        sampled_right_BS=sampled_right_BS,
        replaced_BL=seen_BL,
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
    words_M2 = rng.bits(keys_M[:, None], rng.mix(torch.arange(2, dtype=torch.int32, device=keys_M.device)))
    column_M = ((words_M2[:, 0].long() & 0xFFFFFFFF) * count) >> 32
    own_M = rng.uniform(words_M2[:, 1]) < keep_V[column_M]
    return torch.where(own_M, column_M, alias_V[column_M])


def _from_states(
    model: Electra,
    hidden_MD: Tensor,
    batch: Sequences,
    slots: Slots,
    shown_BL: Tensor,
    generator: GeneratorConfig,
    *,
    logits: bool,
) -> Proposal:
    assert model.generator_head is not None
    gold_M, keys_M = gold_and_keys(batch, slots)
    bent = generator.temperature != 1.0 or generator.disallow_correct
    table_VE = model.generator_embeddings.token.weight
    given = (model.generator_head, hidden_MD, table_VE, gold_M)
    words = foretell(*given, None if bent else keys_M, logits=logits or bent)
    sampled_M = words.sampled_M
    if sampled_M is None:
        assert words.logits_MV is not None
        forbidden_M = gold_M if generator.disallow_correct else None
        logp_MV = words.logits_MV.float().log_softmax(1)
        sampled_M = sample(logp_MV, keys_M, temperature=generator.temperature, forbidden_M=forbidden_M)
    return Proposal(words.logits_MV if logits else None, words.nll_M, sampled_M, gold_M, shown_BL, hidden_MD)
