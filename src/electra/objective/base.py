"""What every objective offers the training step.

Shapes: B sequences, L length, M masked positions (of a sequence after B, of the whole batch alone), D width.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences


class Outcome(NamedTuple):
    """A micro-batch's share of the loss, and sums (named by the objective's `stats`) for the log."""

    loss: Tensor
    sums: Tensor


class Restoration(NamedTuple):
    """How well the network that is fine-tuned later predicts the original tokens; four tensors of one shape."""

    nll: Tensor
    correct: Tensor
    scored: Tensor
    """Where the objective predicts."""
    replaced: Tensor
    """Where another token stood in the original's place."""


class Evaluation(NamedTuple):
    """Everything about a held-out batch, token by token; the detection fields are None without a discriminator."""

    used_BM: Tensor
    nll_BM: Tensor
    correct_BM: Tensor
    original_ids_BL: Tensor
    masked_ids_BL: Tensor
    """What the generator read."""
    sample_correct_BM: Tensor | None = None
    corrupted_ids_BL: Tensor | None = None
    """What the discriminator read."""
    logits_BL: Tensor | None = None
    restoration: Restoration | None = None
    scored_BL: Tensor | None = None
    """The tokens whose detection counts, where that is not every real one."""
    fake_BL: Tensor | None = None
    """The tokens to detect, where these are not the changed ones."""


class Objective(Protocol):
    """A training signal: what to predict in a batch, the loss of a micro-batch, and its evaluation."""

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the sums that `loss` returns."""

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        """The masked positions of a whole batch."""

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        """The denominators of the loss over the whole batch: micro-batches and ranks share them."""

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        """A micro-batch's part of the batch loss; the parts of all micro-batches add up to it."""

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        """Predictions without dropout."""

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """Readable figures from summed stats."""


def gather_masked(x_BLD: Tensor, positions_BM: Tensor) -> Tensor:
    """(M, D) hidden states at the masked positions."""
    index = positions_BM[..., None].expand(-1, -1, x_BLD.shape[-1])
    return torch.gather(x_BLD, 1, index).flatten(0, 1)
