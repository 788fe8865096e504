"""Replaced token detection that also tells by [CLS] how many of their tokens a row's two segments share.

One of the synthetic signals of BLEURT (arXiv 2004.04696): an encoder that has compared two segments before needs fewer
labelled pairs to do it for a task.

Shapes: B sequences, L length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Outcome
from electra.objective.corrective import Corrective
from electra.objective.rtd import ReplacedTokenDetection


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Loss = that of `objective` + weight · BCE, over the rows of two segments, of the share of tokens in common.

    Tokens weigh by how rare they are, `information_V`. The share is that of what the discriminator reads, with replaced
    tokens in it.
    """

    objective: ReplacedTokenDetection | Corrective
    weight: float
    information_V: Tensor
    special: tuple[int, ...]

    @property
    def stats(self) -> tuple[str, ...]:
        return (*self.objective.stats, "overlap_sum", "overlap_error", "pairs")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.objective.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        pairs = batch.segments_BL.amax(1).sum().float()
        return torch.cat((self.objective.counts(batch, masked), pairs[None]))

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        found, outcome = self.objective.outcome(electra, batch, masked, counts)
        logits_B = electra.overlap_head(found.hidden_BLD[:, 0]).squeeze(1).float()
        read = batch._replace(ids_BL=found.corrupted_ids_BL)
        shared_B, pair_B = shared_tokens(read, self.information_V, self.special), batch.segments_BL.amax(1).float()
        overlap_sum = F.binary_cross_entropy_with_logits(logits_B, shared_B, weight=pair_B, reduction="sum")
        error = ((logits_B.detach().sigmoid() - shared_B).abs() * pair_B).sum()
        more = torch.stack([overlap_sum.detach(), error, pair_B.sum()])
        loss = outcome.loss + self.weight * overlap_sum / counts[2].clamp(min=1)
        return Outcome(loss, torch.cat((outcome.sums, more)))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.objective.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        figures, pairs = self.objective.means(sums), max(1.0, sums["pairs"])
        overlap = sums["overlap_sum"] / pairs
        loss = figures["loss"] + self.weight * overlap
        return figures | {"loss": loss, "overlap_loss": overlap, "overlap_error": sums["overlap_error"] / pairs}


def information(counts_V: Tensor) -> Tensor:
    """(V,) -log of each token's share of the text, of one seen once more than it was."""
    return -torch.log((counts_V.double() + 1) / (counts_V.double() + 1).sum()).float()


def shared_tokens(batch: Sequences, information_V: Tensor, special: tuple[int, ...]) -> Tensor:
    """(B,) the share of a row's information in tokens that stand in both of its segments; special tokens are none."""
    ids_BL, place_L = batch.ids_BL, torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device)
    text_BL = place_L < batch.lengths_B[:, None]
    for token in special:
        text_BL = text_BL & (ids_BL != token)
    second_BL = batch.segments_BL == 1
    same_BLL = (ids_BL[:, :, None] == ids_BL[:, None, :]) & (second_BL[:, :, None] != second_BL[:, None, :])
    both_BL = (same_BLL & text_BL[:, None, :]).any(2)
    weight_BL = information_V[ids_BL.long()] * text_BL
    return (weight_BL * both_BL).sum(1) / weight_BL.sum(1).clamp(min=1e-6)
