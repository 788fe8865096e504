"""Logits by the library, then loss and sample in one pass over them, and their gradient in one more.

Samples are drawn as the reference draws them: first a block of 128 entries by its total, then an entry of it.

Shapes: M masked positions, E embedding size, V vocabulary (padded to whole blocks).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from electra.ops import Prediction
from electra.ops.cpp.library import call
from electra.ops.first_order import first_order_only
from electra.ops.reference.linear_cross_entropy import pad_vocabulary, vocabulary_logits


def linear_cross_entropy(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, *, logits: bool
) -> Prediction:
    logits_MV = vocabulary_logits(x_ME, *pad_vocabulary(table_VE, bias_V))
    nll_M, sampled_M = _CrossEntropy.apply(logits_MV, gold_M, keys_M)  # type: ignore[no-untyped-call]
    return Prediction(logits_MV if logits else None, nll_M, None if keys_M is None else sampled_M)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor | None) -> tuple[Tensor, Tensor]:
        logits_MV, gold_M = logits_MV.contiguous(), gold_M.contiguous()
        nll_M, lse_M = logits_MV.new_empty(2, len(logits_MV), dtype=torch.float32)
        sampled_M = torch.empty_like(gold_M)
        keys = None if keys_M is None else keys_M.contiguous()
        call("cross_entropy", logits_MV.dtype, logits_MV, gold_M, keys, nll_M, lse_M, sampled_M, *logits_MV.shape)
        ctx.save_for_backward(logits_MV, gold_M, lse_M)
        ctx.mark_non_differentiable(sampled_M)
        return nll_M, sampled_M

    @staticmethod
    @first_order_only
    def backward(ctx: Any, d_nll_M: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, gold_M, lse_M = ctx.saved_tensors
        d_logits_MV = torch.empty_like(logits_MV)
        arguments = (logits_MV, gold_M, lse_M, d_nll_M.contiguous(), d_logits_MV)
        call("cross_entropy_backward", logits_MV.dtype, *arguments, *logits_MV.shape)
        return d_logits_MV, None, None
