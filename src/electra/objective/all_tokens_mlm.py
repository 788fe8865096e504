"""All-tokens MLM: every original token predicted from the corrupted sequence, through a copy gate (Table 5).

Shapes: B sequences, L length, M = B·L tokens, E embedding size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import CopyHead
from electra.objective.base import Evaluation, Outcome, Restoration
from electra.objective.copy_gate import restore
from electra.objective.generators import Generator, corrupt, evaluate_generator
from electra.objective.rtd import discriminator_states
from electra.ops import Ops
from electra.ops.reference.linear_cross_entropy import pad_vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class AllTokensMLM:
    """Loss = mlm_weight · the generator's MLM over the masked positions + 1 · -log p(original) over all real tokens.

    `rtd_weight` plays no part, as for `replace-mlm`: both losses are cross-entropies over the vocabulary.
    """

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    generator: Generator
    ops: Ops
    stats = ("mlm_sum", "masked", "main_sum", "tokens", "replaced", "copy_sum")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.ops.choose_masked(*batch.addressed, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.ops.count_targets(masked.used_BM, batch.lengths_B)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        samples = self.generator.sample(electra, batch, masked, dropout=True, logits=False)
        mlm_sum = self.ops.masked_sum(samples.nll_M, masked.used_BM)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        read = self._read(electra, batch, corrupted_ids_BL, dropout=True)
        real_M = _real(batch).flatten()
        gold_M, there_M = batch.ids_BL.flatten().long(), corrupted_ids_BL.flatten().long()
        main_sum = self.ops.copy_cross_entropy(*read, gold_M, there_M == gold_M, real_M.float())
        loss = main_sum / counts[1].clamp(min=1)
        if self.generator.learns:
            loss = loss + self.weights.mlm_weight * mlm_sum / counts[0].clamp(min=1)
        sums = (
            mlm_sum.detach(),
            masked.used_BM.sum(),
            main_sum.detach(),
            real_M.sum(),
            (corrupted_ids_BL != batch.ids_BL).sum(),
            (torch.sigmoid(read.copy_M.detach()) * real_M).sum(),
        )
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        """The detection logits are what the loss implies: the odds that the token there is not the original."""
        electra = cast(Electra, model)
        masked = self.choose_masked(batch)
        samples = self.generator.sample(electra, batch, masked, dropout=False)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        read = self._read(electra, batch, corrupted_ids_BL, dropout=False)
        restored = restore(*read, batch.ids_BL.flatten().long(), corrupted_ids_BL.flatten().long())
        shape = corrupted_ids_BL.shape
        return evaluate_generator(batch, masked, samples, corrupted_ids_BL)._replace(
            logits_BL=restored.replaced_M.view(shape),
            restoration=Restoration(
                nll=restored.nll_M.view(shape),
                correct=restored.best_M.view(shape) == batch.ids_BL,
                scored=_real(batch),
                replaced=corrupted_ids_BL != batch.ids_BL,
            ),
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        tokens = max(1.0, sums["tokens"])
        mlm, main = sums["mlm_sum"] / max(1.0, sums["masked"]), sums["main_sum"] / tokens
        return {
            "loss": main + (self.weights.mlm_weight * mlm if self.generator.learns else 0.0),
            "mlm_loss": mlm,
            "main_loss": main,
            "copy_rate": sums["copy_sum"] / tokens,
            "replaced_rate": sums["replaced"] / tokens,
        }

    def _read(self, model: Electra, batch: Sequences, corrupted_ids_BL: Tensor, *, dropout: bool) -> _Read:
        head = cast(CopyHead, model.discriminator_head)
        hidden_MD = discriminator_states(self.ops, model, batch, corrupted_ids_BL, dropout=dropout).flatten(0, 1)
        table_VE, bias_V = pad_vocabulary(model.token_table, head.masked.bias)
        return _Read(head.masked.states(hidden_MD), table_VE, bias_V, head.copies(hidden_MD))


class _Read(NamedTuple):
    """The main network's output for every token, short of the product with the vocabulary."""

    x_ME: Tensor
    table_VE: Tensor
    bias_V: Tensor
    copy_M: Tensor


def _real(batch: Sequences) -> Tensor:
    return torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device) < batch.lengths_B[:, None]
