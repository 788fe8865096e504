"""Which words stand at some places: a distribution over the vocabulary, what it says of the right ones, a sample of it.

Shapes: M places, V vocabulary (padded to whole blocks), D width, E embedding size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from electra.batches.masking import Slots
from electra.kernels import one_launch
from electra.kernels.host import library
from electra.kernels.host.vocabulary import judge
from electra.model.heads import MaskedHead
from electra.objective.corrupt import NEVER, pad_vocabulary, sample


class Words(NamedTuple):
    """What a head says of words."""

    logits_MV: Tensor | None
    """Where they were asked for."""
    nll_M: Tensor
    """Minus the log-probabilities of the words that stood there."""
    sampled_M: Tensor | None
    """Where keys to draw with were given."""

    @property
    def best_M(self) -> Tensor:
        """The likeliest words, by logits that were asked for."""
        assert self.logits_MV is not None
        return self.logits_MV.argmax(1)


def foretell(
    head: MaskedHead,
    hidden_MD: Tensor,
    table_VE: Tensor,
    gold_M: Tensor,
    keys_M: Tensor | None = None,
    *,
    logits: bool = True,
) -> Words:
    """What the head says of the words at some places, from the encoder's states there.

    `logits` false is for those who need none: on some GPUs there is a faster way without them.
    """
    if head.fused and hidden_MD.is_cuda:
        from electra.kernels.vocabulary import predict

        given = (head.states(hidden_MD), table_VE, head.bias, gold_M, keys_M)
        return Words(*predict(*given, never=NEVER, logits=logits))
    table_VE, bias_V = pad_vocabulary(table_VE, head.bias)
    logits_MV = head(hidden_MD, table_VE, bias_V)
    kept_MV = logits_MV if logits else None
    if library.usable(logits_MV):
        return Words(kept_MV, *judge(logits_MV, gold_M, keys_M))
    logp_MV = logits_MV.float().log_softmax(1)
    nll_M = F.nll_loss(logp_MV, gold_M, reduction="none")
    return Words(kept_MV, nll_M, None if keys_M is None else sample(logp_MV, keys_M))


def loss_of_slots(nll_M: Tensor, slots: Slots) -> Tensor:
    """The losses of the words at the slots in use, added up."""
    if one_launch(nll_M):
        from electra.kernels.detect import sum_used

        return sum_used(nll_M, slots.used_BS.flatten())
    return (nll_M * slots.used_BS.flatten().float()).sum()
