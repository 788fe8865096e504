"""What every objective offers the training step.

Shapes: B sequences, L length, M masked positions (of a sequence after B, of the whole batch alone: of 8 sequences with
19 each, `nll_BM` is 8 x 19 and `nll_M` 152), D width.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences
from electra.errors import ConfigError


class Outcome(NamedTuple):
    """A micro-batch's share of the loss, and sums for the log."""

    loss: Tensor
    """A scalar with gradient, divided by `counts` already."""
    sums: Tensor
    """(S,) fp32, one for each name of the objective's `stats`, in that order and without gradient. Micro-batches, ranks
    and steps are added up, so these are sums and counts, no means."""


class Read(NamedTuple):
    """What the network that is fine-tuned later has read of a micro-batch, for objectives beside others."""

    ids_BL: Tensor
    hidden_BLD: Tensor
    """Its last hidden states, with gradient."""


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
    """A training signal: what to predict in a batch, the loss of a micro-batch, and its evaluation.

    A step calls `choose_masked` and `counts` once for a process's part of the batch, then `loss` for each micro-batch
    of it. They may be compiled or captured in a CUDA graph: they ask the device nothing, and their shapes follow from
    the batch's alone. Each log line calls `means`. `require_contract` checks what a line needs.
    """

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the sums that `loss` returns; with "tokens", the real ones, by which speed and progress count."""

    def choose_masked(self, batch: Sequences) -> MaskedPositions:
        """The masked positions of a whole batch."""

    def counts(self, batch: Sequences, masked: MaskedPositions) -> Tensor:
        """The denominators of the loss over the whole batch, fp32: micro-batches and ranks share their sums."""

    def loss(self, model: nn.Module, batch: Sequences, masked: MaskedPositions, counts: Tensor) -> Outcome:
        """A micro-batch's part of the batch loss; the parts of all micro-batches add up to it."""

    def evaluate(self, model: nn.Module, batch: Sequences) -> Evaluation:
        """Predictions without dropout."""

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """Readable figures from summed stats, logged as `train/NAME`; with "loss", which shows divergence.

        The sums are those of `stats`, all 0 where every step was skipped.
        """


def require_contract(objective: Objective, sums: Tensor | None = None) -> None:
    """ConfigError where an objective lacks what every log line is made of, or its `loss` gave other `sums`."""
    stats, problem = objective.stats, ""
    if "tokens" not in stats:
        problem = "its stats lack 'tokens', the real ones, by which speed counts"
    elif sums is not None and sums.shape != (len(stats),):
        problem = f"its loss gives sums of shape {tuple(sums.shape)} for the {len(stats)} names of its stats"
    elif sums is None:
        try:
            if "loss" not in objective.means(dict.fromkeys(stats, 0.0)):
                problem = "its means lack 'loss'"
        except KeyError as error:
            problem = f"its means read {error}, which its stats lack"
        except ZeroDivisionError:
            problem = "its means divide by a sum of 0, as after a line of skipped steps"
    if problem:
        fix = "objective/base.py says what an objective gives"
        raise ConfigError("objective.name", f"{type(objective).__name__}: {problem}", fix=fix)


def gather_masked(x_BLD: Tensor, positions_BM: Tensor) -> Tensor:
    """(M, D) hidden states at the masked positions."""
    index = positions_BM[..., None].expand(-1, -1, x_BLD.shape[-1])
    return torch.gather(x_BLD, 1, index).flatten(0, 1)
