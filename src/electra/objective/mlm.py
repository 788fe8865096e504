"""Masked language modelling with one full-size encoder (BERT, 80/10/10): the baseline.

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from electra import rng
from electra.batches.masking import Slots
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import DISCRIMINATOR_SITE, Bert
from electra.objective.base import Evaluation, Outcome, gather_slots
from electra.objective.corrupt import choose_slots, gold_and_keys, mask_bert
from electra.objective.words import Words, foretell, loss_of_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLanguageModelling:
    """Loss = mlm_weight · MLM over the slots."""

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    mask_id: int
    stats = ("mlm_sum", "slots", "mlm_right", "tokens")

    def plan(self, batch: Sequences) -> Slots:
        return choose_slots(batch, self.masking, self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return slots.used_BS.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        words, gold_M, _ = self._predict(cast(Bert, model), batch, slots, dropout=True)
        used_M = slots.used_BS.flatten()
        mlm_sum = loss_of_slots(words.nll_M, slots)
        right = ((words.best_M == gold_M) & used_M).sum()
        sums = (mlm_sum.detach(), used_M.sum(), right, batch.lengths_B.sum())
        loss = self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        slots = self.plan(batch)
        words, gold_M, shown_BL = self._predict(cast(Bert, model), batch, slots, dropout=False)
        shape = slots.used_BS.shape
        return Evaluation(
            used_BS=slots.used_BS,
            nll_BS=words.nll_M.view(shape),
            right_BS=(words.best_M == gold_M).view(shape),
            original_BL=batch.ids_BL,
            shown_BL=shown_BL,
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        slots = max(1.0, sums["slots"])
        mlm = sums["mlm_sum"] / slots
        return {"loss": self.weights.mlm_weight * mlm, "mlm_loss": mlm, "mlm_accuracy": sums["mlm_right"] / slots}

    def _predict(self, model: Bert, batch: Sequences, slots: Slots, *, dropout: bool) -> tuple[Words, Tensor, Tensor]:
        vocab = model.embeddings.token.num_embeddings
        shown_BL = mask_bert(batch, slots, mask_id=self.mask_id, vocab=vocab)
        keys_B = rng.fold(batch.keys_B, DISCRIMINATOR_SITE) if dropout else None
        x_BLE = model.embeddings(shown_BL, batch.segments_BL, keys_B)
        hidden_BLD = model.encoder(x_BLE, batch.lengths_B, keys_B, batch.spans)
        gold_M, _ = gold_and_keys(batch, slots)
        hidden_MD = gather_slots(hidden_BLD, slots.positions_BS)
        words = foretell(model.head, hidden_MD, model.embeddings.token.weight, gold_M)
        return words, gold_M, shown_BL
