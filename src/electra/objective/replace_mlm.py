"""Replace MLM: masked language modelling from the generator's samples instead of [MASK] (the paper's Table 5).

Shapes: B sequences, L length, S prediction slots, M = B·S, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import MaskedHead
from electra.objective.base import Evaluation, Outcome, Restoring, gather_slots
from electra.objective.corrupt import choose_slots
from electra.objective.propose import Proposer, judge_proposal, put_samples
from electra.objective.rtd import detection_states
from electra.objective.words import Words, foretell, loss_of_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceMLM:
    """Loss = mlm_weight · the generator's MLM + 1 · the main network's, both over the slots.

    `rtd_weight` plays no part: 50 makes up for a yes-or-no answer being worth ten times less than a word in
    nats, and here both losses are cross-entropies of words. The two networks meet in the embeddings only.
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    proposer: Proposer
    stats = ("mlm_sum", "slots", "main_sum", "main_right", "tokens", "replaced")

    def plan(self, batch: Sequences) -> Slots:
        return choose_slots(batch, self.masking, self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return slots.used_BS.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        proposal = self.proposer.propose(electra, batch, slots, dropout=True, logits=False)
        used_M = slots.used_BS.flatten()
        mlm_sum = loss_of_slots(proposal.nll_M, slots)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        words = _predict(electra, batch, slots, seen_BL, proposal.gold_M, dropout=True)
        main_sum = loss_of_slots(words.nll_M, slots)
        loss = main_sum / counts[0].clamp(min=1)
        if self.proposer.learns:
            loss = loss + self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        sums = (
            mlm_sum.detach(),
            used_M.sum(),
            main_sum.detach(),
            ((words.best_M == proposal.gold_M) & used_M).sum(),
            batch.lengths_B.sum(),
            (seen_BL != batch.ids_BL).sum(),
        )
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        electra = cast(Electra, model)
        slots = self.plan(batch)
        proposal = self.proposer.propose(electra, batch, slots, dropout=False)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        shape, gold_M = slots.used_BS.shape, proposal.gold_M
        words = _predict(electra, batch, slots, seen_BL, gold_M, dropout=False)
        return judge_proposal(batch, slots, proposal, seen_BL)._replace(
            restoring=Restoring(
                nll=words.nll_M.view(shape),
                right=(words.best_M == gold_M).view(shape),
                judged=slots.used_BS,
                replaced=seen_BL.gather(1, slots.positions_BS) != gold_M.view(shape),
            ),
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        slots = max(1.0, sums["slots"])
        mlm, main = sums["mlm_sum"] / slots, sums["main_sum"] / slots
        return {
            "loss": main + (self.weights.mlm_weight * mlm if self.proposer.learns else 0.0),
            "mlm_loss": mlm,
            "main_loss": main,
            "main_accuracy": sums["main_right"] / slots,
            "replaced_rate": sums["replaced"] / max(1.0, sums["tokens"]),
        }


def _predict(
    model: Electra, batch: Sequences, slots: Slots, seen_BL: Tensor, gold_M: Tensor, *, dropout: bool
) -> Words:
    head = cast(MaskedHead, model.discriminator_head)
    hidden_BLD = detection_states(model, batch, seen_BL, dropout=dropout)
    hidden_MD = gather_slots(hidden_BLD, slots.positions_BS)
    return foretell(head, hidden_MD, model.token_table, gold_M)
