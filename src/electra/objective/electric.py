"""Electric: an energy for every token, learned by telling the text's tokens from a cloze model's (NCE).

The discriminator's output is the energy E of a token in its surroundings, and exp(-E) stands for its probability there
without a sum over the vocabulary ever being taken. A share r of the tokens is replaced by samples of q, two causal
towers that see everything but the token itself, so that a token was sampled with the odds

    r q(x) / ((1 - r) exp(-E(x)))  =  exp(E(x) + log q(x) + log(r / (1 - r)))

and the exponent on the right is the logit that the loss judges; it is least where exp(-E) is the text's probability.
As in the released code, q reads the original text (its towers are run once) and is asked for the tokens that the
discriminator sees, its log-probability there is a constant to the discriminator, and a sample that happens to be the
original is still a sample. Unlike there, [CLS] and [SEP] are not judged: they are never sampled, so the odds above
would be wrong, and q is not trained on them either. Both losses are means over the tokens that could be chosen.

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary, D width, R = B·L, C rows of a chunk.
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

from electra.batches.masking import Slots, candidates, put
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig, ObjectiveConfig
from electra.model.electra import Electra
from electra.model.heads import MaskedHead
from electra.objective.base import Evaluation, Outcome
from electra.objective.corrupt import choose_slots, pad_vocabulary
from electra.objective.propose import Proposal, TwoTowerNetwork, judge_proposal, put_samples
from electra.objective.rtd import detection_logits

CHUNK_ROWS = 4096  # positions that meet the vocabulary together: 0.5 GB of fp32 numbers at 30,522 entries
NEVER = -1e4  # the logit of a token that is never sampled


class Judged(NamedTuple):
    """A corrupted batch, and what both networks say of it."""

    proposal: Proposal
    seen_BL: Tensor
    chosen_BL: Tensor
    cloze_BL: Tensor
    """log q of the original tokens."""
    logits_BL: Tensor
    """How much the seen tokens look sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Electric:
    """Loss = mlm_weight · cloze cross-entropy + rtd_weight · NCE, both over all tokens but special ones and padding."""

    weights: ObjectiveConfig
    masking: MaskingConfig
    special: tuple[int, ...]
    proposer: TwoTowerNetwork
    chunk_rows: int = CHUNK_ROWS
    stats = ("mlm_sum", "rtd_sum", "judged", "rtd_right", "replaced", "tokens")

    def plan(self, batch: Sequences) -> Slots:
        return choose_slots(batch, self.masking, self.special)

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        return self._judged(batch).sum().float()[None]

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        judged_BL = self._judged(batch)
        said = self._judge(cast(Electra, model), batch, slots, dropout=True)
        mlm_sum = -(said.cloze_BL * judged_BL).sum()
        nce_BL = F.binary_cross_entropy_with_logits(said.logits_BL, said.chosen_BL.float(), reduction="none")
        rtd_sum = (nce_BL * judged_BL).sum()
        loss = (self.weights.mlm_weight * mlm_sum + self.weights.rtd_weight * rtd_sum) / counts[0].clamp(min=1)
        right = (((said.logits_BL > 0) == said.chosen_BL) & judged_BL).sum()
        replaced = (said.seen_BL != batch.ids_BL).sum()
        sums = (mlm_sum.detach(), rtd_sum.detach(), judged_BL.sum(), right, replaced, batch.lengths_B.sum())
        return Outcome(loss, torch.stack([value.float() for value in sums]))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        slots, judged_BL = self.plan(batch), self._judged(batch)
        said = self._judge(cast(Electra, model), batch, slots, dropout=False)
        return judge_proposal(batch, slots, said.proposal, said.seen_BL)._replace(
            logits_BL=torch.where(judged_BL, said.logits_BL, NEVER),
            judged_BL=judged_BL,
            fake_BL=said.chosen_BL,
        )

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        judged = max(1.0, sums["judged"])
        mlm, rtd = sums["mlm_sum"] / judged, sums["rtd_sum"] / judged
        return {
            "loss": self.weights.mlm_weight * mlm + self.weights.rtd_weight * rtd,
            "mlm_loss": mlm,
            "rtd_loss": rtd,
            "rtd_accuracy": sums["rtd_right"] / judged,
            "replaced_rate": sums["replaced"] / max(1.0, sums["tokens"]),
        }

    def _judged(self, batch: Sequences) -> Tensor:
        """(B, L) the tokens that could be chosen."""
        return candidates(batch.ids_BL, batch.lengths_B, self.special)

    def _judge(self, model: Electra, batch: Sequences, slots: Slots, *, dropout: bool) -> Judged:
        states_BLD = self.proposer.states(model, batch, dropout=dropout)
        with torch.no_grad():
            proposal = self.proposer.propose_from(model, states_BLD, batch, slots)
        seen_BL = put_samples(batch, slots, proposal, self.masking)
        ones_BS = torch.ones_like(slots.positions_BS)
        chosen_BL = put(torch.zeros_like(batch.ids_BL), slots.positions_BS, ones_BS, slots.used_BS).bool()
        cloze_BL, noise_BL = self._log_q(model, states_BLD, batch.ids_BL, seen_BL)
        energy_BL = detection_logits(model, batch, seen_BL, dropout=dropout)
        rate = self.masking.rate
        logits_BL = energy_BL + noise_BL.detach() + math.log(rate / (1 - rate))
        return Judged(proposal, seen_BL, chosen_BL, cloze_BL, logits_BL)

    def _log_q(self, model: Electra, states_BLD: Tensor, *ids_BL: Tensor) -> Sequence[Tensor]:
        """The towers' log-probabilities of each of the `ids`, some positions at a time and again going backwards."""
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
    logits_CV: Tensor = head(states_CD, table_VE, bias_V).float()
    return logits_CV.gather(1, asked_CK) - logits_CV.logsumexp(1, keepdim=True)
