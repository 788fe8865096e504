"""What every objective offers the training step.

Shapes: B sequences, L length, S prediction slots a sequence.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from electra.batches.masking import Slots
from electra.batches.sequences import Sequences


class Outcome(NamedTuple):
    """A micro-batch's share of the loss, and sums (named by the objective's `stats`) for the log."""

    loss: Tensor
    sums: Tensor


class Restoring(NamedTuple):
    """How well the network that is kept names the original tokens; four tensors of one shape."""

    nll: Tensor
    right: Tensor
    judged: Tensor
    """Where the objective asks."""
    replaced: Tensor
    """Where another token stood in the original's place."""


class Evaluation(NamedTuple):
    """Everything about a held-out batch, token by token; the detection fields are None without a discriminator."""

    used_BS: Tensor
    nll_BS: Tensor
    right_BS: Tensor
    original_BL: Tensor
    shown_BL: Tensor
    sampled_right_BS: Tensor | None = None
    replaced_BL: Tensor | None = None
    logits_BL: Tensor | None = None
    restoring: Restoring | None = None
    judged_BL: Tensor | None = None
    """The tokens whose detection counts, where that is not every real one."""
    fake_BL: Tensor | None = None
    """The tokens to detect, where these are not the changed ones."""


class Objective(Protocol):
    """A training signal: what to predict in a batch, the loss of a micro-batch, and how to judge it."""

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the sums that `loss` returns."""

    def plan(self, batch: Sequences) -> Slots:
        """The prediction slots of a whole batch."""

    def counts(self, batch: Sequences, slots: Slots) -> Tensor:
        """The denominators of the loss over the whole batch: micro-batches and ranks share them."""

    def loss(self, model: nn.Module, batch: Sequences, slots: Slots, counts: Tensor) -> Outcome:
        """A micro-batch's part of the batch loss; the parts of all micro-batches add up to it."""

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        """Predictions without dropout."""

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """Readable figures from summed stats."""


def gather_slots(x_BLD: Tensor, positions_BS: Tensor) -> Tensor:
    """(B·S, D) states at the slots."""
    index = positions_BS[..., None].expand(-1, -1, x_BLD.shape[-1])
    return torch.gather(x_BLD, 1, index).flatten(0, 1)
