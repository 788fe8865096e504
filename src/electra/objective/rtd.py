"""Replaced token detection, generator and discriminator trained jointly (ELECTRA).

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra import rng
from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.kernels import one_launch
from electra.model.electra import DISCRIMINATOR_SITE, Electra
from electra.objective.base import Evaluation, Outcome
from electra.objective.beside import step_aside, step_back
from electra.objective.corrupt import choose_slots
from electra.objective.propose import Proposal, Proposer, judge_proposal, put_samples
from electra.objective.words import loss_of_slots


class Detection(NamedTuple):
    """Sums over a micro-batch that carry gradients, the discriminator's loss token by token, and the log's sums."""

    mlm_sum: Tensor
    rtd_sum: Tensor
    bce_BL: Tensor
    sums: Tensor
    """In the order of the objective's `stats`."""
    hidden_BLD: Tensor
    seen_BL: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedTokenDetection:
    """Loss = mlm_weight · MLM over the slots + rtd_weight · BCE over all real tokens.

    `chosen_only` takes the BCE over the chosen positions alone (ELECTRA 15 %).
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    proposer: Proposer
    chosen_only: bool = False
    stats = ("mlm_sum", "slots", "rtd_sum", "tokens", "replaced", "rtd_right", "judged")

    def plan(self, batch: Sequences) -> Slots:
        return choose_slots(batch, self.masking, self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        if one_launch(slots.used_BS) and not self.chosen_only:
            from electra.kernels.slots import count

            return count(slots.used_BS, batch.lengths_B)
        return torch.stack((slots.used_BS.sum(), self._judged(batch, slots).sum())).float()

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        main = step_aside(batch.ids_BL.device) if self.proposer.learns else None
        proposal = self.proposer.propose(electra, batch, slots, dropout=True, logits=False)
        mlm_sum = loss_of_slots(proposal.nll_M, slots)
        step_back(main)
        found = self.detect(electra, batch, slots, proposal, mlm_sum)
        return Outcome(self.weighed(found, counts), found.sums)

    def weighed(self, found: Detection, counts: Tensor) -> Tensor:
        """The loss of what `detect` found; a generator that does not learn has no part in it."""
        if one_launch(found.rtd_sum) and self.proposer.learns:
            from electra.kernels.detect import weigh

            weights = {"rtd_weight": self.weights.rtd_weight, "mlm_weight": self.weights.mlm_weight}
            weighed: Tensor = weigh(found.rtd_sum, found.mlm_sum, counts, **weights)
            return weighed
        loss = self.weights.rtd_weight * found.rtd_sum / counts[1].clamp(min=1)
        if self.proposer.learns:
            loss = loss + self.weights.mlm_weight * found.mlm_sum / counts[0].clamp(min=1)
        return loss

    def detect(self, model: Electra, batch: Sequences, slots: Slots, proposal: Proposal, mlm_sum: Tensor) -> Detection:
        """The losses of both networks over what was proposed, with dropout in the discriminator."""
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        hidden_BLD = detection_states(model, batch, seen_BL, dropout=True)
        scores_BL = model.discriminator_head(hidden_BLD)
        rtd_sum, figures, bce_BL = self._judge(batch, slots, scores_BL, seen_BL)
        sums = torch.cat((mlm_sum.detach()[None], figures))
        return Detection(mlm_sum, rtd_sum, bce_BL, sums, hidden_BLD, seen_BL)

    def _judge(
        self, batch: Sequences, slots: Slots, scores_BL: Tensor, seen_BL: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The discriminator's loss, the log's sums after that of the generator's loss, and the loss token by token."""
        if one_launch(scores_BL) and not self.chosen_only:
            from electra.kernels.detect import detect

            return detect(scores_BL, seen_BL, batch.ids_BL, batch.lengths_B, slots.used_BS)
        replaced_BL, judged_BL = seen_BL != batch.ids_BL, self._judged(batch, slots)
        bce_BL = F.binary_cross_entropy_with_logits(scores_BL, replaced_BL.float(), reduction="none")
        rtd_sum = (bce_BL * judged_BL).sum()
        right = (((scores_BL > 0) == replaced_BL) & judged_BL).sum()
        tokens, judged = batch.lengths_B.sum(), judged_BL.sum()
        figures = (slots.used_BS.sum(), rtd_sum.detach(), tokens, replaced_BL.sum(), right, judged)
        return rtd_sum, torch.stack([value.float() for value in figures]), bce_BL

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        electra = cast(Electra, model)
        slots = self.plan(batch)
        proposal = self.proposer.propose(electra, batch, slots, dropout=False)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        judged = judge_proposal(batch, slots, proposal, seen_BL)
        return judged._replace(logits_BL=detection_logits(electra, batch, seen_BL, dropout=False))

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        tokens, slots, judged = (max(1.0, sums[name]) for name in ("tokens", "slots", "judged"))
        mlm, rtd = sums["mlm_sum"] / slots, sums["rtd_sum"] / judged
        learned = self.weights.mlm_weight * mlm if self.proposer.learns else 0.0
        return {
            "loss": learned + self.weights.rtd_weight * rtd,
            "mlm_loss": mlm,
            "rtd_loss": rtd,
            "rtd_accuracy": sums["rtd_right"] / judged,
            "replaced_rate": sums["replaced"] / tokens,
        }

    def _judged(self, batch: Sequences, slots: Slots) -> Tensor:
        """(B, L) the tokens whose detection counts."""
        place_L = torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device)
        if not self.chosen_only:
            return place_L < batch.lengths_B[:, None]
        chosen_BLS = (place_L[:, None] == slots.positions_BS[:, None]) & slots.used_BS[:, None]
        return chosen_BLS.any(2)


def detection_logits(model: Electra, batch: Sequences, seen_BL: Tensor, *, dropout: bool) -> Tensor:
    """(B, L) what the discriminator's head says of the tokens seen."""
    scores_BL: Tensor = model.discriminator_head(detection_states(model, batch, seen_BL, dropout=dropout))
    return scores_BL


def detection_states(model: Electra, batch: Sequences, seen_BL: Tensor, *, dropout: bool) -> Tensor:
    """(B, L, D) the discriminator's last states of the tokens seen."""
    keys_B = rng.fold(batch.keys_B, DISCRIMINATOR_SITE) if dropout else None
    x_BLE = model.embed(seen_BL, batch.segments_BL, keys_B)
    hidden_BLD: Tensor = model.discriminator(x_BLE, batch.lengths_B, keys_B, batch.spans)
    return hidden_BLD
