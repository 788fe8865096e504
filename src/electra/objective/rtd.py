"""Replaced token detection, generator and discriminator trained jointly (ELECTRA).

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra import rng
from electra.batches.masking import Slots, choose
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import DISCRIMINATOR_SITE, GENERATOR_SITE, Electra
from electra.objective.base import Evaluation, Outcome, gather_slots
from electra.objective.corrupt import mask, pad_vocabulary, replace, sample, slot_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedTokenDetection:
    """Loss = mlm_weight · MLM over the slots + rtd_weight · BCE over all real tokens."""

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    mask_id: int
    stats = ("mlm_sum", "slots", "rtd_sum", "tokens", "replaced", "rtd_right")

    def plan(self, batch: Sequences) -> Slots:
        return choose(batch.ids_BL, batch.lengths_B, batch.keys_B, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return torch.stack((slots.used_BS.sum(), batch.lengths_B.sum())).float()

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        logp_MV, gold_M, _ = self._generate(electra, batch, slots, dropout=True)
        used_M = slots.used_BS.flatten().float()
        mlm_sum = (F.nll_loss(logp_MV, gold_M, reduction="none") * used_M).sum()
        seen_BL = self._corrupt(batch, slots, logp_MV)
        replaced_BL = seen_BL != batch.ids_BL
        scores_BL = self._detect(electra, batch, seen_BL, dropout=True)
        real_BL = _real(batch)
        bce_BL = F.binary_cross_entropy_with_logits(scores_BL, replaced_BL.float(), reduction="none")
        rtd_sum = (bce_BL * real_BL).sum()
        loss = self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        loss = loss + self.weights.rtd_weight * rtd_sum / counts[1]
        right = (((scores_BL > 0) == replaced_BL) & real_BL).sum()
        sums = (mlm_sum.detach(), used_M.sum(), rtd_sum.detach(), real_BL.sum(), replaced_BL.sum(), right)
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        electra = cast(Electra, model)
        slots = self.plan(batch)
        logp_MV, gold_M, shown_BL = self._generate(electra, batch, slots, dropout=False)
        seen_BL = self._corrupt(batch, slots, logp_MV)
        shape = slots.used_BS.shape
        right = gather_slots(seen_BL[..., None], slots.positions_BS).view(shape) == gold_M.view(shape)
        return Evaluation(
            used_BS=slots.used_BS,
            nll_BS=F.nll_loss(logp_MV, gold_M, reduction="none").view(shape),
            right_BS=(logp_MV.argmax(1) == gold_M).view(shape),
            original_BL=batch.ids_BL,
            shown_BL=shown_BL,
            sampled_right_BS=right,
            replaced_BL=seen_BL,
            logits_BL=self._detect(electra, batch, seen_BL, dropout=False),
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        tokens, slots = max(1.0, sums["tokens"]), max(1.0, sums["slots"])
        mlm, rtd = sums["mlm_sum"] / slots, sums["rtd_sum"] / tokens
        return {
            "loss": self.weights.mlm_weight * mlm + self.weights.rtd_weight * rtd,
            "mlm_loss": mlm,
            "rtd_loss": rtd,
            "rtd_accuracy": sums["rtd_right"] / tokens,
            "replaced_rate": sums["replaced"] / tokens,
        }

    def _generate(
        self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        shown_BL = mask(batch, slots, masked_share=self.masking.masked_share, mask_id=self.mask_id)
        keys_B = rng.fold(batch.keys_B, GENERATOR_SITE) if dropout else None
        x_BLE = model.generator_embeddings(shown_BL, batch.segments_BL, keys_B)
        hidden_BLD = model.generator(x_BLE, batch.lengths_B, keys_B)
        table_VE, bias_V = pad_vocabulary(model.generator_embeddings.token.weight, model.generator_head.bias)
        logits_MV = model.generator_head(gather_slots(hidden_BLD, slots.positions_BS), table_VE, bias_V)
        gold_M = batch.ids_BL.gather(1, slots.positions_BS).flatten().long()
        return logits_MV.float().log_softmax(1), gold_M, shown_BL

    def _corrupt(self, batch: Sequences, slots: Slots, logp_MV: Tensor) -> Tensor:
        sampled_BS = sample(logp_MV, slot_keys(batch, slots)).view(slots.positions_BS.shape)
        return replace(batch, slots, sampled_BS, official=self.masking.policy == "official")

    def _detect(self, model: Electra, batch: Sequences, seen_BL: Tensor, *, dropout: bool) -> Tensor:
        keys_B = rng.fold(batch.keys_B, DISCRIMINATOR_SITE) if dropout else None
        x_BLE = model.embeddings(seen_BL, batch.segments_BL, keys_B)
        scores_BL: Tensor = model.discriminator_head(model.discriminator(x_BLE, batch.lengths_B, keys_B))
        return scores_BL


def _real(batch: Sequences) -> Tensor:
    return torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device) < batch.lengths_B[:, None]
