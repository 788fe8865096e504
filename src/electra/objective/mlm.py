"""Masked language modelling with one full-size encoder (BERT, 80/10/10): the baseline.

Shapes: B sequences, L length, M masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import DISCRIMINATOR_CALL_SITE, Bert
from electra.objective.base import Evaluation, Outcome, Read, gather_masked
from electra.ops import Ops, Prediction

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


class Predicted(NamedTuple):
    """The head's output at the masked positions, with what it was asked for and what was read."""

    prediction: Prediction
    gold_M: Tensor
    read: Read


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLanguageModelling:
    """Loss = mlm_weight · MLM over the masked positions."""

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    mask_id: int
    ops: Ops
    stats = ("mlm_sum", "masked", "mlm_correct", "tokens")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.ops.choose_masked(*batch.addressed, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return masked.used_BM.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self.outcome(cast(Bert, model), batch, masked, counts)[1]

    def outcome(self, model: Bert, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> tuple[Read, Outcome]:
        """The loss, and what the encoder read."""
        prediction, gold_M, read = self._predict(model, batch, masked, dropout=True)
        correct_M = prediction.best_M == gold_M
        return read, mlm_outcome(self.ops, self.weights, prediction.nll_M, correct_M, batch, masked, counts)

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        masked = self.choose_masked(batch)
        prediction, gold_M, read = self._predict(cast(Bert, model), batch, masked, dropout=False)
        shape = masked.used_BM.shape
        return Evaluation(
            used_BM=masked.used_BM,
            nll_BM=prediction.nll_M.view(shape),
            correct_BM=(prediction.best_M == gold_M).view(shape),
            original_ids_BL=batch.ids_BL,
            masked_ids_BL=read.ids_BL,
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        return mlm_means(self.weights, sums)

    def _predict(self, model: Bert, batch: Sequences, masked: MaskedPositions, *, dropout: bool) -> Predicted:
        ops, token = self.ops, model.embeddings.token
        masked_ids_BL = ops.apply_mask(
            batch.ids_BL,
            batch.keys_B,
            masked,
            mask_share=MASK_SHARE,
            random_share=RANDOM_SHARE,
            mask_id=self.mask_id,
            vocab=token.num_embeddings,
        )
        keys_B = ops.fold_keys(batch.keys_B, DISCRIMINATOR_CALL_SITE) if dropout else None
        x_BLE = model.embeddings(masked_ids_BL, batch.segments_BL, keys_B)
        hidden_BLD = model.encoder(x_BLE, batch.lengths_B, keys_B, batch.spans)
        gold_M, _ = ops.masked_targets(batch.ids_BL, batch.keys_B, masked)
        prediction = model.head(gather_masked(hidden_BLD, masked.positions_BM), token.weight, gold_M)
        return Predicted(prediction, gold_M, Read(masked_ids_BL, hidden_BLD))


def mlm_outcome(
    ops: Ops,
    weights: ObjectiveConfig,
    nll_M: Tensor,
    correct_M: Tensor,
    batch: Sequences,
    masked: MaskedPositions,
    counts: Tensor,
) -> Outcome:
    """The MLM loss alone, with the sums of `MaskedLanguageModelling.stats`."""
    used_M = masked.used_BM.flatten()
    mlm_sum = ops.masked_sum(nll_M, masked.used_BM)
    sums = (mlm_sum.detach(), used_M.sum(), (correct_M & used_M).sum(), batch.lengths_B.sum())
    loss = weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
    return Outcome(loss, torch.stack([value.float() for value in sums]))


def mlm_means(weights: ObjectiveConfig, sums: dict[str, float]) -> dict[str, float]:
    """Loss and accuracy from the sums of `mlm_outcome`."""
    masked = max(1.0, sums["masked"])
    mlm = sums["mlm_sum"] / masked
    return {"loss": weights.mlm_weight * mlm, "mlm_loss": mlm, "mlm_accuracy": sums["mlm_correct"] / masked}
