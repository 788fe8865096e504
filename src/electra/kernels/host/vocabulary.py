"""Loss and sample of a distribution over the vocabulary on a CPU: one loop over the logits each way.

Its plain twin is in `objective.words`; samples are drawn as there, first a block by its total, then an entry of it.

Shapes: M rows, V vocabulary (whole blocks of 128).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.kernels.host.library import call


def judge(logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(M,) losses of the gold entries in fp32 and, with keys, (M,) entries drawn from the distributions."""
    loss_M, sampled_M = _Judge.apply(logits_MV, gold_M, keys_M)  # type: ignore[no-untyped-call]
    return loss_M, None if keys_M is None else sampled_M


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor | None) -> tuple[Tensor, Tensor]:
        logits_MV, gold_M = logits_MV.contiguous(), gold_M.contiguous()
        loss_M, level_M = logits_MV.new_empty(2, len(logits_MV), dtype=torch.float32)
        sampled_M = torch.empty_like(gold_M)
        keys = None if keys_M is None else keys_M.contiguous()
        call("judge", logits_MV.dtype, logits_MV, gold_M, keys, loss_M, level_M, sampled_M, *logits_MV.shape)
        ctx.save_for_backward(logits_MV, gold_M, level_M)
        ctx.mark_non_differentiable(sampled_M)
        return loss_M, sampled_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss_M: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, gold_M, level_M = ctx.saved_tensors
        found_MV = torch.empty_like(logits_MV)
        given = (logits_MV, gold_M, level_M, d_loss_M.contiguous(), found_MV)
        call("judge_back", logits_MV.dtype, *given, *logits_MV.shape)
        return found_MV, None, None
