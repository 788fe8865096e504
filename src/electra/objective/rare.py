"""Any objective, with rare tokens chosen more often in training (a negative result of the paper).

Shapes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig
from electra.objective.base import Evaluation, Objective, Outcome
from electra.ops.reference.choose_masked import choose_masked


@dataclass(frozen=True, kw_only=True, slots=True)
class RareFirst:
    """`objective` over positions drawn in proportion to frequency ** -masking.rare.

    Held-out figures are over positions drawn evenly, so that they compare with every other run's.
    """

    objective: Objective
    masking: MaskingConfig
    special: tuple[int, ...]
    log_weights_V: Tensor

    @property
    def stats(self) -> tuple[str, ...]:
        return self.objective.stats

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return choose_masked(
            *batch.addressed,
            masking=self.masking,
            special=self.special,
            log_weights_V=self.log_weights_V,
        )

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.objective.counts(batch, masked)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self.objective.loss(model, batch, masked, counts)

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.objective.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        return self.objective.means(sums)


def rarity(counts_V: Tensor, power: float) -> Tensor:
    """Logarithms of the weights that tokens are chosen by; one that never occurred counts as if it had once."""
    return -power * counts_V.double().clamp(min=1).log()
