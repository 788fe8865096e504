"""The loss of the copy gate over a whole vocabulary: p(x) = D·[x is the token there] + (1 - D)·softmax(x).

All of it stays in logarithms, and no (M, V) tensor ever exists: rows are taken in chunks, and a chunk's gradient is
computed with its loss, while its logits are there. So nothing is computed twice, as activation checkpointing would.

Shapes: M tokens, E embedding size, V vocabulary (padded to whole blocks).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops.first_order import first_order_only

CHUNK = 2048  # tokens whose logits exist at a time: 250 MB in fp32 for 30,522 entries


def copy_cross_entropy(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, copy_M: Tensor, gold_M: Tensor, same_M: Tensor, weight_M: Tensor
) -> Tensor:
    arguments = (x_ME, table_VE, bias_V, copy_M, gold_M, same_M, weight_M)
    if not torch.is_grad_enabled():
        return _chunked(*arguments, gradients=False)[0]
    total: Tensor = _CopyCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return total


def gate(logp_M: Tensor, copy_M: Tensor, same_M: Tensor) -> tuple[Tensor, Tensor]:
    """-log p of each token from its log-softmax, and the softmax's share in p."""
    anew_M = F.logsigmoid(-copy_M) + logp_M
    nll_M = -torch.where(same_M, torch.logaddexp(F.logsigmoid(copy_M), anew_M), anew_M)
    return nll_M, torch.where(same_M, torch.sigmoid(logp_M - copy_M), 1.0)


class _CopyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        total, gradients = _chunked(*arguments, gradients=True)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @partial(first_order_only, fix="plain linear_cross_entropy and `gate` together have one")
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, table, bias, copy = (gradient * outer[0].to(gradient.dtype) for gradient in ctx.saved_tensors)
        return x, table, bias, copy, None, None, None


def _chunked(
    x_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    copy_M: Tensor,
    gold_M: Tensor,
    same_M: Tensor,
    weight_M: Tensor,
    *,
    gradients: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum, and its gradients by x, table, bias and copy."""
    rounded_VE, rounded_V = table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype)
    place_V = torch.arange(len(table_VE), device=x_ME.device)
    total = copy_M.new_zeros(())
    d_table_VE, d_bias_V = torch.zeros_like(table_VE), torch.zeros_like(bias_V)
    d_x, d_copy = [], []
    rows = zip(*(t.split(CHUNK) for t in (x_ME, copy_M, gold_M, same_M, weight_M)), strict=True)
    for x, copy, gold, same, weight in rows:
        logp_MV = F.linear(x, rounded_VE, rounded_V).float().log_softmax(1)
        nll, share = gate(logp_MV.gather(1, gold[:, None]).squeeze(1), copy, same)
        total = total + (nll * weight).sum()
        if not gradients:
            continue
        p_MV = logp_MV.exp()
        d_logits_MV = torch.where(place_V == gold[:, None], p_MV - 1, p_MV) * (weight * share)[:, None]
        d_bias_V = d_bias_V + d_logits_MV.sum(0).to(d_bias_V.dtype)
        d_logits_MV = d_logits_MV.to(x.dtype)
        d_table_VE = d_table_VE + (d_logits_MV.T @ x).to(d_table_VE.dtype)
        d_x.append(d_logits_MV @ rounded_VE)
        d_copy.append((torch.sigmoid(copy) + share - 1) * weight)
    return total, (torch.cat(d_x), d_table_VE, d_bias_V, torch.cat(d_copy)) if gradients else ()
