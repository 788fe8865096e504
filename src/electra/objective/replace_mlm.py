"""Replace MLM: masked language modelling from the generator's samples instead of [MASK] (the paper's Table 5).

Shapes: B sequences, L length, M masked positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import MaskedHead
from electra.objective.base import Evaluation, Outcome, Restoration, gather_masked
from electra.objective.generators import Generator, corrupt, evaluate_generator
from electra.objective.rtd import discriminator_states
from electra.ops import Ops, Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceMLM:
    """Loss = mlm_weight · the generator's MLM + 1 · the main network's, both over the masked positions.

    `rtd_weight` plays no part: 50 makes up for a binary answer being worth ten times less than a token in nats, and
    here both losses are cross-entropies over the vocabulary. The two networks meet in the embeddings only.
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    generator: Generator
    ops: Ops
    stats = ("mlm_sum", "masked", "main_sum", "main_correct", "tokens", "replaced")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.ops.choose_masked(*batch.addressed, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return masked.used_BM.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        samples = self.generator.sample(electra, batch, masked, dropout=True, logits=False)
        used_M = masked.used_BM.flatten()
        mlm_sum = self.ops.masked_sum(samples.nll_M, masked.used_BM)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        prediction = self._predict(electra, batch, masked, corrupted_ids_BL, samples.gold_M, dropout=True)
        main_sum = self.ops.masked_sum(prediction.nll_M, masked.used_BM)
        loss = main_sum / counts[0].clamp(min=1)
        if self.generator.learns:
            loss = loss + self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        sums = (
            mlm_sum.detach(),
            used_M.sum(),
            main_sum.detach(),
            ((prediction.best_M == samples.gold_M) & used_M).sum(),
            batch.lengths_B.sum(),
            (corrupted_ids_BL != batch.ids_BL).sum(),
        )
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        electra = cast(Electra, model)
        masked = self.choose_masked(batch)
        samples = self.generator.sample(electra, batch, masked, dropout=False)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        shape, gold_M = masked.used_BM.shape, samples.gold_M
        prediction = self._predict(electra, batch, masked, corrupted_ids_BL, gold_M, dropout=False)
        return evaluate_generator(batch, masked, samples, corrupted_ids_BL)._replace(
            restoration=Restoration(
                nll=prediction.nll_M.view(shape),
                correct=(prediction.best_M == gold_M).view(shape),
                scored=masked.used_BM,
                replaced=corrupted_ids_BL.gather(1, masked.positions_BM) != gold_M.view(shape),
            ),
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        masked = max(1.0, sums["masked"])
        mlm, main = sums["mlm_sum"] / masked, sums["main_sum"] / masked
        return {
            "loss": main + (self.weights.mlm_weight * mlm if self.generator.learns else 0.0),
            "mlm_loss": mlm,
            "main_loss": main,
            "main_accuracy": sums["main_correct"] / masked,
            "replaced_rate": sums["replaced"] / max(1.0, sums["tokens"]),
        }

    def _predict(
        self,
        model: Electra,
        batch: Sequences,
        masked: MaskedPositions,
        corrupted_ids_BL: Tensor,
        gold_M: Tensor,
        *,
        dropout: bool,
    ) -> Prediction:
        head = cast(MaskedHead, model.discriminator_head)
        hidden_BLD = discriminator_states(self.ops, model, batch, corrupted_ids_BL, dropout=dropout)
        prediction: Prediction = head(gather_masked(hidden_BLD, masked.positions_BM), model.token_table, gold_M)
        return prediction
