"""The generator in two stages: alone, by masked language modelling, and then frozen.

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import ObjectiveConfig
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Objective, Outcome
from electra.objective.propose import Proposal, Proposer, judge_proposal
from electra.objective.words import loss_of_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorOnly:
    """Loss = mlm_weight · MLM over the slots; the discriminator is not read."""

    weights: ObjectiveConfig
    proposer: Proposer
    next: Objective
    """The objective of the second stage: the slots are chosen as it chooses them."""
    stats = ("mlm_sum", "slots", "mlm_right", "tokens")

    def plan(self, batch: Sequences) -> Slots:
        return self.next.plan(batch)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return slots.used_BS.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        proposal = self.proposer.propose(cast(Electra, model), batch, slots, dropout=True)
        used_M = slots.used_BS.flatten()
        mlm_sum = loss_of_slots(proposal.nll_M, slots)
        right = ((proposal.best_M == proposal.gold_M) & used_M).sum()
        sums = (mlm_sum.detach(), used_M.sum(), right, batch.lengths_B.sum())
        loss = self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        slots = self.plan(batch)
        proposal = self.proposer.propose(cast(Electra, model), batch, slots, dropout=False)
        return judge_proposal(batch, slots, proposal)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        slots = max(1.0, sums["slots"])
        mlm = sums["mlm_sum"] / slots
        return {"loss": self.weights.mlm_weight * mlm, "mlm_loss": mlm, "mlm_accuracy": sums["mlm_right"] / slots}


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """A generator that has learned all it will: no gradient, and no dropout, so that its distribution stays put."""

    proposer: Proposer
    learns = False

    def propose(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool, logits: bool = True
    ) -> Proposal:
        with torch.no_grad():
            return self.proposer.propose(model, batch, slots, dropout=False, logits=logits)
