"""The loss of the copy gate from `linear_cross_entropy` over all logits at once: 1 GB for 16,384 tokens in bf16.

Reference: `reference/copy_cross_entropy.py`, whose chunks keep no logits.

Shapes: M tokens, E embedding size, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from electra.ops.reference.copy_cross_entropy import gate
from electra.ops.triton.linear_cross_entropy import linear_cross_entropy


def copy_cross_entropy(
    x_ME: Tensor,
    table_VE: Tensor,
    bias_V: Tensor,
    copy_M: Tensor,
    gold_M: Tensor,
    same_M: Tensor,
    weight_M: Tensor,
) -> Tensor:
    nll_M = linear_cross_entropy(x_ME, table_VE, bias_V, gold_M, None, logits=False).nll_M
    return (gate(-nll_M, copy_M, same_M)[0] * weight_M).sum()
