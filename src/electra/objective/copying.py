"""Keeping a token or predicting it anew: the loss of the copy gate over a whole vocabulary, a few rows at a time.

p(x) = D·[x is the token there] + (1 − D)·softmax(x), where D = sigmoid(copy logit).

All of it stays in logarithms. Without fused kernels no (M, V) tensor ever exists: rows are taken in chunks, and a
chunk's gradient is taken with its loss, while its logits are there. So nothing is computed twice, as activation
checkpointing would.

Shapes: M tokens, E embedding size, V vocabulary (padded to whole blocks).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.objective.corrupt import NEVER

MOST_BYTES = (
    2**31
)  # of logits that are kept at once for the way back: 32,768 tokens in bf16, as many bytes once more there
CHUNK = 2048  # tokens whose logits exist at a time: 250 MB in fp32 for 30,522 entries


class Restored(NamedTuple):
    """What the gate and the softmax together say of each token."""

    nll_M: Tensor
    """Minus the log-probability of the original."""
    best_M: Tensor
    """The likeliest original."""
    replaced_M: Tensor
    """Logit of the token there not being the original."""


def restore(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, copies_M: Tensor, gold_M: Tensor, there_M: Tensor
) -> Restored:
    """The judgement of every token, without gradient."""
    parts = []
    with torch.no_grad():
        table_VE, bias_V = table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype)
        for x, copies, gold, there in zip(*(t.split(CHUNK) for t in (x_ME, copies_M, gold_M, there_M)), strict=True):
            logp_MV = F.linear(x, table_VE, bias_V).float().log_softmax(1)
            anew, kept = F.logsigmoid(-copies), F.logsigmoid(copies)
            nll, _ = gate(logp_MV.gather(1, gold[:, None]).squeeze(1), copies, there == gold)
            other, place = logp_MV.max(1)
            same = logp_MV.gather(1, there[:, None]).squeeze(1)
            stays = torch.logaddexp(kept, anew + same)
            best = torch.where(stays >= anew + other, there, place)
            leaves = anew + torch.log(-torch.expm1(same.clamp(max=-1e-7)))
            parts.append(Restored(nll, best, leaves - stays))
    return Restored(*(torch.cat(column) for column in zip(*parts, strict=True)))


def restoring_loss(
    x_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    copies_M: Tensor,
    gold_M: Tensor,
    there_M: Tensor,
    counted_M: Tensor,
    *,
    fused: bool = False,
) -> Tensor:
    """The sum of −log p(original) over the tokens that are `counted`.

    `fused` takes one kernel on a GPU, unless the logits of all tokens are too much to keep.
    """
    given = (x_ME, table_VE, bias_V, copies_M, gold_M, there_M == gold_M, counted_M.float())
    if fused and x_ME.is_cuda and len(x_ME) * len(table_VE) * x_ME.element_size() <= MOST_BYTES:
        return fused_loss(*given)
    if not torch.is_grad_enabled():
        return _pass(*given, learn=False)[0]
    total: Tensor = _RestoringLoss.apply(*given)  # type: ignore[no-untyped-call]
    return total


def fused_loss(
    x_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    copies_M: Tensor,
    gold_M: Tensor,
    same_M: Tensor,
    weight_M: Tensor,
) -> Tensor:
    """The weighted sum from all logits at once, in the type of x: 1 GB for 16,384 tokens in bf16."""
    from electra.kernels.vocabulary import predict

    _, nll_M, _ = predict(x_ME, table_VE, bias_V, gold_M, None, never=NEVER)
    return (gate(-nll_M, copies_M, same_M)[0] * weight_M).sum()


def gate(logp_M: Tensor, copies_M: Tensor, same_M: Tensor) -> tuple[Tensor, Tensor]:
    """−log p of each token from its log-softmax, and the softmax's share in p."""
    anew_M = F.logsigmoid(-copies_M) + logp_M
    nll_M = -torch.where(same_M, torch.logaddexp(F.logsigmoid(copies_M), anew_M), anew_M)
    return nll_M, torch.where(same_M, torch.sigmoid(logp_M - copies_M), 1.0)


class _RestoringLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        total, gradients = _pass(*given, learn=True)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, table, bias, copies = (gradient * outer[0].to(gradient.dtype) for gradient in ctx.saved_tensors)
        return x, table, bias, copies, None, None, None


def _pass(
    x_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    copies_M: Tensor,
    gold_M: Tensor,
    same_M: Tensor,
    weight_M: Tensor,
    *,
    learn: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum, and its gradients by x, table, bias and copies."""
    product_VE, added_V = table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype)
    place_V = torch.arange(len(table_VE), device=x_ME.device)
    total = copies_M.new_zeros(())
    d_table_VE, d_bias_V = torch.zeros_like(table_VE), torch.zeros_like(bias_V)
    d_x, d_copies = [], []
    rows = zip(*(t.split(CHUNK) for t in (x_ME, copies_M, gold_M, same_M, weight_M)), strict=True)
    for x, copies, gold, same, weight in rows:
        logp_MV = F.linear(x, product_VE, added_V).float().log_softmax(1)
        nll, share = gate(logp_MV.gather(1, gold[:, None]).squeeze(1), copies, same)
        total = total + (nll * weight).sum()
        if not learn:
            continue
        p_MV = logp_MV.exp()
        d_logits_MV = torch.where(place_V == gold[:, None], p_MV - 1, p_MV) * (weight * share)[:, None]
        d_bias_V = d_bias_V + d_logits_MV.sum(0).to(d_bias_V.dtype)
        d_logits_MV = d_logits_MV.to(x.dtype)
        d_table_VE = d_table_VE + (d_logits_MV.T @ x).to(d_table_VE.dtype)
        d_x.append(d_logits_MV @ product_VE)
        d_copies.append((torch.sigmoid(copies) + share - 1) * weight)
    return total, (torch.cat(d_x), d_table_VE, d_bias_V, torch.cat(d_copies)) if learn else ()
