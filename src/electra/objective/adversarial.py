"""A generator that is rewarded for the discriminator's mistakes (REINFORCE), instead of for likely tokens.

The reward of a masked position is the discriminator's loss on the token that was sampled there; all other tokens are
left out, on the paper's assumption that their loss does not depend on the sample. The generator has no MLM loss: it
learns which of its samples were right through the reward alone. A baseline, -log sigmoid(w·h) over the generator's
hidden state h at the position, is subtracted from the reward. It learns, by cross-entropy, the probability
exp(-reward) that the discriminator gave to the truth, and no gradient of that reaches the generator.

Shapes: B sequences, L length, M masked positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.config.schema import GeneratorConfig
from electra.model.electra import Electra
from electra.objective.base import Evaluation, Outcome
from electra.objective.rtd import ReplacedTokenDetection


@dataclass(frozen=True, kw_only=True, slots=True)
class Adversarial:
    """Loss = rtd_weight · BCE over all real tokens + mlm_weight · REINFORCE over masked ones + the baseline's loss.

    The REINFORCE term stands where the MLM loss stood; its gradient is what matters, its value says nothing and is not
    logged. `mlm_loss` is logged for comparison and trains nothing.
    """

    rtd: ReplacedTokenDetection
    generator: GeneratorConfig

    @property
    def stats(self) -> tuple[str, ...]:
        return (*self.rtd.stats, "reward_sum", "baseline_sum", "entropy_sum")

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        return self.rtd.choose_masked(batch)

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        return self.rtd.counts(batch, masked)

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        electra = cast(Electra, model)
        samples = self.rtd.generator.sample(electra, batch, masked, dropout=True)
        mlm_sum = self.rtd.ops.masked_sum(samples.nll_M, masked.used_BM)
        found = self.rtd.detect(electra, batch, masked, samples, mlm_sum)
        assert samples.hidden_MD is not None
        used_M = masked.used_BM.flatten().float()
        reward_M = found.bce_BL.detach().gather(1, masked.positions_BM).flatten()
        answer_M = electra.baseline_head(samples.hidden_MD.detach()).squeeze(1).float()
        baseline_M = F.softplus(-answer_M.detach())
        logp_MV = samples.logp_MV
        drawn_MV = log_probabilities(logp_MV, samples.gold_M, self.generator)
        chosen_M = drawn_MV.gather(1, samples.sampled_M[:, None]).squeeze(1)
        # Minimising this climbs the reward.
        climb_sum = -((reward_M - baseline_M) * chosen_M * used_M).sum()
        cross_M = F.binary_cross_entropy_with_logits(answer_M, (-reward_M).exp(), reduction="none")
        baseline_sum = (cross_M * used_M).sum()
        with torch.no_grad():
            entropy_M = -(logp_MV.exp() * logp_MV).sum(1)
        weights, masked_count = self.rtd.weights, counts[0].clamp(min=1)
        loss = weights.rtd_weight * found.rtd_sum / counts[1].clamp(min=1)
        loss = loss + (weights.mlm_weight * climb_sum + baseline_sum) / masked_count
        more = torch.stack([(reward_M * used_M).sum(), baseline_sum.detach(), (entropy_M * used_M).sum()])
        return Outcome(loss, torch.cat((found.sums, more.float())))

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        return self.rtd.evaluate(model, batch)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """`loss` is the discriminator's part: what one network lowers and the other raises."""
        figures, masked = self.rtd.means(sums), max(1.0, sums["masked"])
        return figures | {
            "loss": self.rtd.weights.rtd_weight * figures["rtd_loss"],
            "reward": sums["reward_sum"] / masked,
            "baseline_loss": sums["baseline_sum"] / masked,
            "entropy": sums["entropy_sum"] / masked,
        }


def log_probabilities(logp_MV: Tensor, gold_M: Tensor, generator: GeneratorConfig) -> Tensor:
    """(M, V) log-probabilities that the samples were drawn with, temperature and forbidden tokens included."""
    if generator.temperature == 1.0 and not generator.disallow_correct:
        return logp_MV
    scores_MV = logp_MV / generator.temperature
    if generator.disallow_correct:
        scores_MV = scores_MV.scatter(1, gold_M[:, None], -torch.inf)
    return scores_MV.log_softmax(1)
