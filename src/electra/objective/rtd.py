"""Replaced token detection, generator and discriminator trained jointly (ELECTRA).

Shapes: B sequences, L length, M masked positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import DISCRIMINATOR_CALL_SITE, Electra
from electra.objective.base import Evaluation, Outcome, Read
from electra.objective.generators import Generator, Samples, corrupt, evaluate_generator
from electra.ops import Ops


class Detected(NamedTuple):
    """What the discriminator gives for a micro-batch; the two sums carry gradients."""

    mlm_sum: Tensor
    rtd_sum: Tensor
    bce_BL: Tensor
    sums: Tensor
    """In the order of the objective's `stats`."""
    read: Read


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedTokenDetection:
    """Loss = mlm_weight · MLM over the masked positions + rtd_weight · BCE over all real tokens.

    `masked_only` takes the BCE over the masked positions alone (ELECTRA 15 %). Held-out detection is over all real
    tokens, so that it compares with other runs.
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    generator: Generator
    ops: Ops
    masked_only: bool = False
    stats = ("mlm_sum", "masked", "rtd_sum", "tokens", "replaced", "rtd_correct", "scored")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.ops.choose_masked(*batch.addressed, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        counts_2 = self.ops.count_targets(masked.used_BM, batch.lengths_B)
        scored_BL = self._scored(batch, masked)
        return counts_2 if scored_BL is None else torch.stack((counts_2[0], scored_BL.sum().float()))

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self.outcome(cast(Electra, model), batch, masked, counts)[1]

    def outcome(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, counts: Tensor
    ) -> tuple[Read, Outcome]:
        """The loss, and what the discriminator read."""
        with self.ops.generator_stream(batch.ids_BL.device):
            samples = self.generator.sample(model, batch, masked, dropout=True, logits=False)
            mlm_sum = self.ops.masked_sum(samples.nll_M, masked.used_BM)
        detected = self.detect(model, batch, masked, samples, mlm_sum)
        return detected.read, Outcome(self.weighted(detected, counts), detected.sums)

    def weighted(self, detected: Detected, counts: Tensor) -> Tensor:
        """The loss of both networks; a generator that does not learn has no part in it."""
        weights = self.weights
        if self.generator.learns:
            sums = (detected.rtd_sum, detected.mlm_sum)
            return self.ops.joint_loss(*sums, counts, rtd_weight=weights.rtd_weight, mlm_weight=weights.mlm_weight)
        return weights.rtd_weight * detected.rtd_sum / counts[1].clamp(min=1)

    def detect(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, samples: Samples, mlm_sum: Tensor
    ) -> Detected:
        """The losses of both networks over the sampled replacements, with dropout in the discriminator."""
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        hidden_BLD = discriminator_states(self.ops, model, batch, corrupted_ids_BL, dropout=True)
        found = self.ops.rtd_loss(
            model.discriminator_head(hidden_BLD),
            corrupted_ids_BL,
            batch.ids_BL,
            batch.lengths_B,
            masked.used_BM,
            self._scored(batch, masked),
        )
        sums = torch.cat((mlm_sum.detach()[None], found.stats_6))
        return Detected(mlm_sum, found.loss, found.bce_BL, sums, Read(corrupted_ids_BL, hidden_BLD))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        electra = cast(Electra, model)
        masked = self.choose_masked(batch)
        samples = self.generator.sample(electra, batch, masked, dropout=False)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        logits_BL = discriminator_logits(self.ops, electra, batch, corrupted_ids_BL, dropout=False)
        return evaluate_generator(batch, masked, samples, corrupted_ids_BL)._replace(logits_BL=logits_BL)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        tokens, masked, scored = (max(1.0, sums[name]) for name in ("tokens", "masked", "scored"))
        mlm, rtd = sums["mlm_sum"] / masked, sums["rtd_sum"] / scored
        learned = self.weights.mlm_weight * mlm if self.generator.learns else 0.0
        return {
            "loss": learned + self.weights.rtd_weight * rtd,
            "mlm_loss": mlm,
            "rtd_loss": rtd,
            "rtd_accuracy": sums["rtd_correct"] / scored,
            "replaced_rate": sums["replaced"] / tokens,
        }

    def _scored(self, batch: Sequences, masked: MaskedPositions) -> Tensor | None:
        """(B, L) the masked positions, where only they count."""
        if not self.masked_only:
            return None
        place_L = torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device)
        chosen_BLM = (place_L[:, None] == masked.positions_BM[:, None]) & masked.used_BM[:, None]
        return chosen_BLM.any(2)


def discriminator_logits(
    ops: Ops, model: Electra, batch: Sequences, corrupted_ids_BL: Tensor, *, dropout: bool
) -> Tensor:
    """(B, L) how much each token looks replaced."""
    hidden_BLD = discriminator_states(ops, model, batch, corrupted_ids_BL, dropout=dropout)
    logits_BL: Tensor = model.discriminator_head(hidden_BLD)
    return logits_BL


def discriminator_states(
    ops: Ops, model: Electra, batch: Sequences, corrupted_ids_BL: Tensor, *, dropout: bool
) -> Tensor:
    """(B, L, D) the discriminator's last hidden states."""
    keys_B = ops.fold_keys(batch.keys_B, DISCRIMINATOR_CALL_SITE) if dropout else None
    x_BLE = model.embed(corrupted_ids_BL, batch.segments_BL, keys_B)
    hidden_BLD: Tensor = model.discriminator(x_BLE, batch.lengths_B, keys_B, batch.spans)
    return hidden_BLD
