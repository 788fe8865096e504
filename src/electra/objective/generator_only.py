"""The first of two stages: the generator alone, by masked language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import ObjectiveConfig
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Objective, Outcome
from electra.objective.generators import Generator, evaluate_generator
from electra.objective.mlm import MaskedLanguageModelling, mlm_means, mlm_outcome
from electra.ops import Ops


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorOnly:
    """Loss = mlm_weight · MLM over the masked positions; the discriminator is not read."""

    weights: ObjectiveConfig
    generator: Generator
    next: Objective
    """The objective of the second stage: positions are chosen as it chooses them."""
    ops: Ops
    stats = MaskedLanguageModelling.stats

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.next.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return masked.used_BM.sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        samples = self.generator.sample(cast(Electra, model), batch, masked, dropout=True)
        correct_M = samples.best_M == samples.gold_M
        return mlm_outcome(self.ops, self.weights, samples.nll_M, correct_M, batch, masked, counts)

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        masked = self.choose_masked(batch)
        samples = self.generator.sample(cast(Electra, model), batch, masked, dropout=False)
        return evaluate_generator(batch, masked, samples)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        return mlm_means(self.weights, sums)
