"""An objective that gets harder over the run: fewer masked positions, likelier replacements.

Schedules are functions of `progress`, the share of the run that is done, a number on the device which the step fills:
so a captured step follows them. Shapes stay: there are masked positions for the largest rate, and those not in use
weigh 0. A step that is not compiled drops them after each quarter of the run.

Shapes: B sequences, M masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.schedules import straight_line
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Objective, Outcome
from electra.objective.generators import Generator, Samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Curriculum:
    """`training`, which draws masked positions for the largest rate, with those beyond the current rate not in use.

    Positions are drawn one after another, so that the first of them are a draw at a lower rate. Held-out figures are
    those of `held_out`, as at the run's end, so that they compare over the run and with other runs.
    """

    training: Objective
    held_out: Objective
    masking: MaskingConfig
    progress: Tensor

    @property
    def stats(self) -> tuple[str, ...]:
        return self.training.stats

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        masked = self.training.choose_masked(batch)
        if not self.masking.rate_start:
            return masked
        rate = straight_line(self.progress, start=self.masking.rate_start, end=self.masking.rate)
        return first_masked(masked, batch, rate)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.training.counts(batch, masked)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        return self.training.loss(model, batch, masked, counts)

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.held_out.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        return self.training.means(sums)


def first_masked(masked: MaskedPositions, batch: Sequences, rate: Tensor) -> MaskedPositions:
    """The masked positions that a rate on the device, not above theirs, leaves in use; as many as at that rate."""
    length, count = batch.ids_BL.shape[1], masked.used_BM.shape[1]
    most = torch.floor((rate + 0.005) * length).clamp(min=1)
    wanted_B = torch.round(batch.lengths_B.float() * rate.float()).clamp(min=1).minimum(most)
    used_BM = masked.used_BM & (torch.arange(count, device=wanted_B.device) < wanted_B[:, None])
    return MaskedPositions(torch.where(used_BM, masked.positions_BM, 0), used_BM)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnigramFirst:
    """A generator whose samples give way to those of `unigram` for a share of the run; it learns all along."""

    generator: Generator
    unigram: Generator
    share: float
    progress: Tensor

    @property
    def learns(self) -> bool:
        return self.generator.learns

    def sample(
        self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool, logits: bool = True
    ) -> Samples:
        samples = self.generator.sample(model, batch, masked, dropout=dropout, logits=logits)
        drawn = self.unigram.sample(model, batch, masked, dropout=dropout, logits=False)
        return samples._replace(sampled_M=torch.where(self.progress < self.share, drawn.sampled_M, samples.sampled_M))
