"""Replaced token detection whose discriminator also predicts the original tokens at the masked positions.

The prediction is from the corrupted text, as COCO-LM's corrective language modelling (arXiv 2102.08473): the encoder
learns which token belongs there beside whether the one there does.

Shapes: B sequences, L length, M masked positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Outcome, Read, gather_masked
from electra.objective.rtd import ReplacedTokenDetection


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrective:
    """Loss = that of `rtd` + correction_weight · cross-entropy of the original tokens over the masked positions."""

    rtd: ReplacedTokenDetection

    @property
    def stats(self) -> tuple[str, ...]:
        return (*self.rtd.stats, "correction_sum")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.rtd.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.rtd.counts(batch, masked)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self.outcome(cast(Electra, model), batch, masked, counts)[1]

    def outcome(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, counts: Tensor
    ) -> tuple[Read, Outcome]:
        """The loss, and what the discriminator read."""
        ops = self.rtd.ops
        with ops.generator_stream(batch.ids_BL.device):
            samples = self.rtd.generator.sample(model, batch, masked, dropout=True, logits=False)
            mlm_sum = ops.masked_sum(samples.nll_M, masked.used_BM)
        found = self.rtd.detect(model, batch, masked, samples, mlm_sum)
        hidden_MD = gather_masked(found.read.hidden_BLD, masked.positions_BM)
        corrected = model.correction_head(hidden_MD, model.token_table, samples.gold_M, logits=False)
        correction_sum = ops.masked_sum(corrected.nll_M, masked.used_BM)
        weight = self.rtd.weights.correction_weight
        loss = self.rtd.weighted(found, counts) + weight * correction_sum / counts[0].clamp(min=1)
        return found.read, Outcome(loss, torch.cat((found.sums, correction_sum.detach()[None])))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.rtd.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        figures = self.rtd.means(sums)
        correction = sums["correction_sum"] / max(1.0, sums["masked"])
        loss = figures["loss"] + self.rtd.weights.correction_weight * correction
        return figures | {"loss": loss, "correction_loss": correction}
