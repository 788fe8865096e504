"""All-tokens MLM: every token's original named from the generator's text, through a copy gate (the paper's Table 5).

Shapes: B sequences, L length, S prediction slots, M = B·L, E embedding size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import CopyHead
from electra.objective.base import Evaluation, Outcome, Restoring
from electra.objective.copying import restore, restoring_loss
from electra.objective.corrupt import choose_slots, pad_vocabulary
from electra.objective.propose import Proposer, judge_proposal, put_samples
from electra.objective.rtd import detection_states
from electra.objective.words import loss_of_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class AllTokensMLM:
    """Loss = mlm_weight · the generator's MLM over the slots + 1 · −log p(original) over all real tokens.

    `rtd_weight` plays no part, as for `replace-mlm`: both losses are cross-entropies of words.
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    proposer: Proposer
    stats = ("mlm_sum", "slots", "main_sum", "tokens", "replaced", "copy_sum")

    def plan(self, batch: Sequences) -> Slots:
        return choose_slots(batch, self.masking, self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return torch.stack((slots.used_BS.sum(), batch.lengths_B.sum())).float()

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        proposal = self.proposer.propose(electra, batch, slots, dropout=True, logits=False)
        mlm_sum = loss_of_slots(proposal.nll_M, slots)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        told = _read(electra, batch, seen_BL, dropout=True)
        real_M = _real(batch).flatten()
        fused = cast(CopyHead, electra.discriminator_head).masked.fused
        main_sum = restoring_loss(*told, batch.ids_BL.flatten().long(), seen_BL.flatten().long(), real_M, fused=fused)
        loss = main_sum / counts[1].clamp(min=1)
        if self.proposer.learns:
            loss = loss + self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        sums = (
            mlm_sum.detach(),
            slots.used_BS.sum(),
            main_sum.detach(),
            real_M.sum(),
            (seen_BL != batch.ids_BL).sum(),
            (torch.sigmoid(told.copies_M.detach()) * real_M).sum(),
        )
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        """The detection logits are what the loss implies: the odds that the token there is not the original."""
        electra = cast(Electra, model)
        slots = self.plan(batch)
        proposal = self.proposer.propose(electra, batch, slots, dropout=False)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        told = _read(electra, batch, seen_BL, dropout=False)
        said = restore(*told, batch.ids_BL.flatten().long(), seen_BL.flatten().long())
        return judge_proposal(batch, slots, proposal, seen_BL)._replace(
            logits_BL=said.replaced_M.view(seen_BL.shape),
            restoring=Restoring(
                nll=said.nll_M.view(seen_BL.shape),
                right=said.best_M.view(seen_BL.shape) == batch.ids_BL,
                judged=_real(batch),
                replaced=seen_BL != batch.ids_BL,
            ),
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        tokens = max(1.0, sums["tokens"])
        mlm, main = sums["mlm_sum"] / max(1.0, sums["slots"]), sums["main_sum"] / tokens
        return {
            "loss": main + (self.weights.mlm_weight * mlm if self.proposer.learns else 0.0),
            "mlm_loss": mlm,
            "main_loss": main,
            "copy_rate": sums["copy_sum"] / tokens,
            "replaced_rate": sums["replaced"] / tokens,
        }


class _Told(NamedTuple):
    """What the main network says of every token, short of the product with the vocabulary."""

    x_ME: Tensor
    table_VE: Tensor
    bias_V: Tensor
    copies_M: Tensor


def _read(model: Electra, batch: Sequences, seen_BL: Tensor, *, dropout: bool) -> _Told:
    head = cast(CopyHead, model.discriminator_head)
    hidden_MD = detection_states(model, batch, seen_BL, dropout=dropout).flatten(0, 1)
    table_VE, bias_V = pad_vocabulary(model.token_table, head.masked.bias)
    return _Told(head.masked.states(hidden_MD), table_VE, bias_V, head.copies(hidden_MD))


def _real(batch: Sequences) -> Tensor:
    return torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device) < batch.lengths_B[:, None]
