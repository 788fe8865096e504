"""-log softmax(x · tableᵀ + bias)[gold], and a sample of the distribution.

Shapes: M masked positions, E embedding size, V vocabulary (padded to whole blocks of 128), K blocks, T entries of one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra import rng
from electra.ops import NEVER, VOCAB_BLOCK, Prediction


def linear_cross_entropy(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, *, logits: bool
) -> Prediction:
    logits_MV = vocabulary_logits(x_ME, *pad_vocabulary(table_VE, bias_V))
    logp_MV = logits_MV.float().log_softmax(1)
    nll_M = F.nll_loss(logp_MV, gold_M, reduction="none")
    sampled_M = None if keys_M is None else sample(logp_MV, keys_M)
    return Prediction(logits_MV if logits else None, nll_M, sampled_M)


def vocabulary_logits(x_ME: Tensor, table_VE: Tensor, bias_V: Tensor) -> Tensor:
    """(M, V) x · tableᵀ + bias, in the precision of `x`."""
    return F.linear(x_ME, table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype))


def pad_vocabulary(table_VE: Tensor, bias_V: Tensor) -> tuple[Tensor, Tensor]:
    """Table and bias padded to whole blocks with entries that no softmax ever picks."""
    missing = -table_VE.shape[0] % VOCAB_BLOCK
    if missing == 0:  # padding by nothing would still copy the table, forward and backward
        return table_VE, bias_V
    return F.pad(table_VE, (0, 0, 0, missing)), F.pad(bias_V, (0, missing), value=NEVER)


def sample(
    log_probabilities_MV: Tensor,
    keys_M: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    forbidden_M: Tensor | None = None,
) -> Tensor:
    """One token id a row, drawn from its distribution: first a block by its total, then a token inside it.

    A `temperature` above 1 makes unlikely tokens likelier; a row's `forbidden` token is never drawn.
    """
    with torch.no_grad():
        p_MV = _weights(log_probabilities_MV.detach(), temperature, forbidden_M)
        p_MKT = p_MV.unflatten(1, (-1, VOCAB_BLOCK))
        draws_M2 = rng.uniform(
            rng.bits(keys_M[:, None], rng.mix(torch.arange(2, dtype=torch.int32, device=keys_M.device)))
        )
        block_M = _pick(p_MKT.sum(2), draws_M2[:, :1])
        inside_MT = p_MKT.gather(1, block_M[:, None, None].expand(-1, 1, VOCAB_BLOCK)).squeeze(1)
        token_M = _pick(inside_MT, draws_M2[:, 1:])
        return block_M * VOCAB_BLOCK + token_M


def _weights(logp_MV: Tensor, temperature: float | Tensor, forbidden_M: Tensor | None) -> Tensor:
    """What to draw in proportion to."""
    if not isinstance(temperature, Tensor) and temperature == 1.0 and forbidden_M is None:
        return logp_MV.exp()
    scores_MV = (logp_MV / temperature).masked_fill(logp_MV < NEVER / 2, -torch.inf)
    if forbidden_M is not None:
        scores_MV = scores_MV.scatter(1, forbidden_M[:, None], -torch.inf)
    # From the likeliest one: a sharpened or nearly certain distribution would leave zeros only.
    return (scores_MV - scores_MV.amax(1, keepdim=True)).exp()


def _pick(weights_MK: Tensor, draw_M1: Tensor) -> Tensor:
    """The index that a uniform draw falls on when the weights are laid end to end."""
    ends_MK = weights_MK.cumsum(1)
    below_MK = ends_MK <= draw_M1 * ends_MK[:, -1:]
    # Rounding may put the draw at the very end: then the last index with any weight.
    last_M = (weights_MK > 0).long().mul(torch.arange(weights_MK.shape[1], device=weights_MK.device)).amax(1)
    return torch.minimum(below_MK.sum(1), last_M)
