"""Electric: an energy for every token, learned by telling the text's tokens from a cloze model's (NCE).

The discriminator's output is the energy E of a token in its surroundings, and exp(-E) stands for its probability there
without a sum over the vocabulary ever being taken. A share r of the tokens is replaced by samples of q, two causal
towers that see everything but the token itself, so that a token was sampled with the odds

    r q(x) / ((1 - r) exp(-E(x)))  =  exp(E(x) + log q(x) + log(r / (1 - r)))

and the exponent on the right is the logit of the loss; it is least where exp(-E) is the text's probability.
As in the released code, q reads the original sequence (its towers are run once) and gives the probability of the tokens
that the discriminator reads; no gradient flows through it. A sample that happens to be the original token counts as
replaced. Unlike there, [CLS] and [SEP] are not scored: they are never sampled, so the odds above would be wrong,
and q is not trained on them either. Both losses are means over the tokens that could be chosen.

Shapes: B sequences, L length, M masked positions, V vocabulary, D width, R = B·L, C rows of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.batches.masking import MaskedPositions, candidates, write_at
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import MaskedHead
from electra.objective.base import Evaluation, Outcome
from electra.objective.generators import Samples, TwoTowerGenerator, corrupt, evaluate_generator
from electra.objective.rtd import discriminator_logits
from electra.ops import NEVER, Ops
from electra.ops.reference.linear_cross_entropy import pad_vocabulary

CHUNK_ROWS = 4096  # positions that meet the vocabulary together: 0.5 GB of fp32 numbers at 30,522 entries


class Noised(NamedTuple):
    """A corrupted batch, and the outputs of both networks for it."""

    samples: Samples
    corrupted_ids_BL: Tensor
    chosen_BL: Tensor
    cloze_BL: Tensor
    """log q of the original tokens."""
    logits_BL: Tensor
    """How much the tokens look sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Electric:
    """Loss = mlm_weight · cloze cross-entropy + rtd_weight · NCE, both over all tokens but special ones and padding."""

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    generator: TwoTowerGenerator
    ops: Ops
    chunk_rows: int = CHUNK_ROWS
    stats = ("mlm_sum", "rtd_sum", "scored", "rtd_correct", "replaced", "tokens")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.ops.choose_masked(*batch.addressed, masking=self.masking, special=self.special)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self._scored(batch).sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        scored_BL = self._scored(batch)
        out = self._noise(cast(Electra, model), batch, masked, dropout=True)
        mlm_sum = -(out.cloze_BL * scored_BL).sum()
        nce_BL = F.binary_cross_entropy_with_logits(out.logits_BL, out.chosen_BL.float(), reduction="none")
        rtd_sum = (nce_BL * scored_BL).sum()
        loss = (self.weights.mlm_weight * mlm_sum + self.weights.rtd_weight * rtd_sum) / counts[0].clamp(min=1)
        correct = (((out.logits_BL > 0) == out.chosen_BL) & scored_BL).sum()
        replaced = (out.corrupted_ids_BL != batch.ids_BL).sum()
        sums = (mlm_sum.detach(), rtd_sum.detach(), scored_BL.sum(), correct, replaced, batch.lengths_B.sum())
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        masked, scored_BL = self.choose_masked(batch), self._scored(batch)
        out = self._noise(cast(Electra, model), batch, masked, dropout=False)
        return evaluate_generator(batch, masked, out.samples, out.corrupted_ids_BL)._replace(
            logits_BL=torch.where(scored_BL, out.logits_BL, NEVER),
            scored_BL=scored_BL,
            fake_BL=out.chosen_BL,
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        scored = max(1.0, sums["scored"])
        mlm, rtd = sums["mlm_sum"] / scored, sums["rtd_sum"] / scored
        return {
            "loss": self.weights.mlm_weight * mlm + self.weights.rtd_weight * rtd,
            "mlm_loss": mlm,
            "rtd_loss": rtd,
            "rtd_accuracy": sums["rtd_correct"] / scored,
            "replaced_rate": sums["replaced"] / max(1.0, sums["tokens"]),
        }

    def _scored(self, batch: Sequences) -> Tensor:
        """(B, L) the tokens that could be chosen."""
        return candidates(batch.ids_BL, batch.lengths_B, self.special)

    def _noise(self, model: Electra, batch: Sequences, masked: MaskedPositions, *, dropout: bool) -> Noised:
        states_BLD = self.generator.states(model, batch, dropout=dropout)
        with torch.no_grad():
            samples = self.generator.sample_from(model, states_BLD, batch, masked)
        corrupted_ids_BL = corrupt(self.ops, batch, masked, samples, self.masking)
        ones_BM = torch.ones_like(masked.positions_BM)
        chosen_BL = write_at(torch.zeros_like(batch.ids_BL), masked.positions_BM, ones_BM, masked.used_BM).bool()
        cloze_BL, noise_BL = self._log_q(model, states_BLD, batch.ids_BL, corrupted_ids_BL)
        energy_BL = discriminator_logits(self.ops, model, batch, corrupted_ids_BL, dropout=dropout)
        rate = self.masking.rate
        logits_BL = energy_BL + noise_BL.detach() + math.log(rate / (1 - rate))
        return Noised(samples, corrupted_ids_BL, chosen_BL, cloze_BL, logits_BL)

    def _log_q(self, model: Electra, states_BLD: Tensor, *ids_BL: Tensor) -> Sequence[Tensor]:
        """The towers' log-probabilities of each of the `ids`, in chunks, recomputed in the backward pass."""
        assert model.generator_head is not None
        table_VE, bias_V = pad_vocabulary(model.generator_embeddings.token.weight, model.generator_head.bias)
        states_RD = states_BLD.flatten(0, 1)
        asked_RK = torch.stack(ids_BL, 2).flatten(0, 1).long()
        found = [
            checkpoint(
                _log_probabilities,
                model.generator_head,
                states_CD,
                asked_CK,
                table_VE,
                bias_V,
                use_reentrant=False,
                preserve_rng_state=False,  # nothing here is random
            )
            for states_CD, asked_CK in zip(
                states_RD.split(self.chunk_rows), asked_RK.split(self.chunk_rows), strict=True
            )
        ]
        return [logq_R.view_as(ids) for logq_R, ids in zip(torch.cat(found).unbind(1), ids_BL, strict=True)]


def _log_probabilities(
    head: MaskedHead, states_CD: Tensor, asked_CK: Tensor, table_VE: Tensor, bias_V: Tensor
) -> Tensor:
    logits_CV: Tensor = head.logits(states_CD, table_VE, bias_V).float()
    return logits_CV.gather(1, asked_CK) - logits_CV.logsumexp(1, keepdim=True)
