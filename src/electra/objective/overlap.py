"""Pre-training that also tells by [CLS] how much of each of a row's two segments stands in the other.

One of the synthetic signals of BLEURT (arXiv 2004.04696): an encoder that has compared two segments before needs fewer
labelled pairs to do it for a task. Each direction is predicted on its own, since entailment asks for one of them.

Shapes: B sequences, L length, V vocabulary, 2 segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.model.electra import Bert, Electra
from electra.objective.base import Evaluation, Objective, Outcome, Read


class Reader(Objective, Protocol):
    """An objective that also says what its network has read."""

    def outcome(self, model: Any, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> tuple[Read, Outcome]:
        """What `loss` gives, behind what was read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Loss = that of `objective` + weight · BCE, over the rows of two segments and both directions, of the shares.

    A share is that of a segment's tokens that the other segment has too; tokens weigh by how rare they are,
    `information_V`. It is of what the encoder reads, with replaced tokens in it or without those that are masked.
    No row counts while `copies`, a number on the device which the run fills, is 0.
    """

    objective: Reader
    weight: float
    information_V: Tensor
    special: tuple[int, ...]
    copies: Tensor | None = None

    @property
    def stats(self) -> tuple[str, ...]:
        return (*self.objective.stats, "overlap_sum", "overlap_error", "pairs")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.objective.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return torch.cat((self.objective.counts(batch, masked), self._pairs(batch).sum()[None]))

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        network = cast(Electra | Bert, model)
        read, outcome = self.objective.outcome(network, batch, masked, counts)
        logits_B2 = network.overlap_head(read.hidden_BLD[:, 0]).float()
        shared_B2 = shared_tokens(batch._replace(ids_BL=read.ids_BL), self.information_V, self.special)
        pair_B = self._pairs(batch)
        bce_B2 = F.binary_cross_entropy_with_logits(logits_B2, shared_B2, reduction="none")
        overlap_sum = (bce_B2.mean(1) * pair_B).sum()
        error = ((logits_B2.detach().sigmoid() - shared_B2).abs().mean(1) * pair_B).sum()
        more = torch.stack([overlap_sum.detach(), error, pair_B.sum()])
        loss = outcome.loss + self.weight * overlap_sum / counts[-1].clamp(min=1)
        return Outcome(loss, torch.cat((outcome.sums, more)))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.objective.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        figures, pairs = self.objective.means(sums), sums["pairs"]
        if not pairs:  # before the first copies
            return figures
        overlap = sums["overlap_sum"] / pairs
        loss = figures["loss"] + self.weight * overlap
        return figures | {"loss": loss, "overlap_loss": overlap, "overlap_error": sums["overlap_error"] / pairs}

    def _pairs(self, batch: Sequences) -> Tensor:
        """(B,) 1 for each row of two segments that counts now, else 0."""
        pair_B = batch.segments_BL.amax(1).float()
        return pair_B if self.copies is None else pair_B * self.copies


def information(counts_V: Tensor) -> Tensor:
    """(V,) -log of each token's share of the text, of one seen once more than it was."""
    return -torch.log((counts_V.double() + 1) / (counts_V.double() + 1).sum()).float()


def shared_tokens(batch: Sequences, information_V: Tensor, special: tuple[int, ...]) -> Tensor:
    """(B, 2) the share of each segment's information in tokens that the other has too; special tokens are none."""
    ids_BL, place_L = batch.ids_BL, torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device)
    text_BL = place_L < batch.lengths_B[:, None]
    for token in special:
        text_BL = text_BL & (ids_BL != token)
    second_BL = batch.segments_BL == 1
    same_BLL = (ids_BL[:, :, None] == ids_BL[:, None, :]) & (second_BL[:, :, None] != second_BL[:, None, :])
    both_BL = (same_BLL & text_BL[:, None, :]).any(2)
    weight_BL = information_V[ids_BL.long()] * text_BL
    weight_B2L = torch.stack((weight_BL * ~second_BL, weight_BL * second_BL), 1)
    return (weight_B2L * both_BL[:, None]).sum(2) / weight_B2L.sum(2).clamp(min=1e-6)
