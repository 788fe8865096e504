"""What the copy gate and the softmax together predict for every token, without gradient; the loss is an op.

p(x) = D·[x is the token there] + (1 - D)·softmax(x), where D = sigmoid(copy logit).

Shapes: M tokens, E embedding size, V vocabulary (padded to whole blocks).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops.reference.copy_cross_entropy import CHUNK, gate


class Restored(NamedTuple):
    """The prediction for each token."""

    nll_M: Tensor
    """-log p of the original."""
    best_M: Tensor
    """The most likely original."""
    replaced_M: Tensor
    """Logit of the token there not being the original."""


@torch.no_grad()
def restore(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, copy_M: Tensor, gold_M: Tensor, there_M: Tensor
) -> Restored:
    """Predictions from head states and copy logits, for original tokens `gold` where the tokens `there` stand."""
    parts = []
    table_VE, bias_V = table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype)
    for x, copy, gold, there in zip(*(t.split(CHUNK) for t in (x_ME, copy_M, gold_M, there_M)), strict=True):
        logp_MV = F.linear(x, table_VE, bias_V).float().log_softmax(1)
        anew, copied = F.logsigmoid(-copy), F.logsigmoid(copy)
        nll, _ = gate(logp_MV.gather(1, gold[:, None]).squeeze(1), copy, there == gold)
        other, place = logp_MV.max(1)
        same = logp_MV.gather(1, there[:, None]).squeeze(1)
        stays = torch.logaddexp(copied, anew + same)
        best = torch.where(stays >= anew + other, there, place)
        leaves = anew + torch.log(-torch.expm1(same.clamp(max=-1e-7)))
        parts.append(Restored(nll, best, leaves - stays))
    return Restored(*(torch.cat(column) for column in zip(*parts, strict=True)))
