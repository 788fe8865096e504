"""Replaced token detection that also classifies by [CLS] whether a sequence was corrupted (a negative result).

Shapes: B sequences, L length, M masked positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra import rng
from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Outcome
from electra.objective.rtd import ReplacedTokenDetection

WHOLE = 104  # purpose under a sample's key


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrastive:
    """Loss = that of `rtd` + contrastive_weight · BCE over the sequences: was any of its tokens replaced?

    Of packed rows, any token of the first document, the only one that [CLS] attends to. A share of the sequences keeps
    the original at every masked position. The generator learns from them as from the others, and the discriminator that
    nothing in them was replaced. Held-out figures are those of `rtd`, every sequence corrupted.
    """

    rtd: ReplacedTokenDetection

    @property
    def stats(self) -> tuple[str, ...]:
        return (*self.rtd.stats, "sentence_sum", "sentence_correct", "sequences")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.rtd.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        sequences = torch.ones_like(batch.lengths_B, dtype=torch.float32).sum()
        return torch.cat((self.rtd.counts(batch, masked), sequences[None]))

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        electra, weights = cast(Electra, model), self.rtd.weights
        samples = self.rtd.generator.sample(electra, batch, masked, dropout=True, logits=False)
        whole_M = left_whole(batch.keys_B, weights.contrastive_share)[:, None].expand_as(masked.used_BM).flatten()
        samples = samples._replace(sampled_M=torch.where(whole_M, samples.gold_M, samples.sampled_M))
        mlm_sum = self.rtd.ops.masked_sum(samples.nll_M, masked.used_BM)
        found = self.rtd.detect(electra, batch, masked, samples, mlm_sum)
        corrupted_BL = found.read.ids_BL != batch.ids_BL
        if batch.spans is not None:  # [CLS] attends to the first document only
            corrupted_BL = corrupted_BL & (batch.spans.first_BL == 0)
        corrupted_B = corrupted_BL.any(1)
        scores_B = electra.sentence_head(found.read.hidden_BLD[:, 0]).squeeze(1).float()
        sentence_sum = F.binary_cross_entropy_with_logits(scores_B, corrupted_B.float(), reduction="sum")
        loss = self.rtd.weighted(found, counts) + weights.contrastive_weight * sentence_sum / counts[2].clamp(min=1)
        correct, sequences = ((scores_B > 0) == corrupted_B).sum(), torch.ones_like(scores_B).sum()
        more = torch.stack([sentence_sum.detach(), correct.float(), sequences])
        return Outcome(loss, torch.cat((found.sums, more)))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.rtd.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        figures, sequences = self.rtd.means(sums), max(1.0, sums["sequences"])
        sentence = sums["sentence_sum"] / sequences
        return figures | {
            "loss": figures["loss"] + self.rtd.weights.contrastive_weight * sentence,
            "sentence_loss": sentence,
            "sentence_accuracy": sums["sentence_correct"] / sequences,
        }


def left_whole(keys_B: Tensor, share: float) -> Tensor:
    """(B,) whether a sequence is left as it is."""
    whole_B: Tensor = rng.uniform(rng.fold(keys_B, WHOLE)) < share
    return whole_B
