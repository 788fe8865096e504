"""The losses of pairs of texts: a text must lie closer to its own than to the others of the batch.

Shapes: R rows, G texts of a row (the first, its second, and a hard negative where there are some), D width,
C candidates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive_loss(vectors_RGD: Tensor, numbers_RG: Tensor, *, scale: float) -> Tensor:
    """InfoNCE, summed over rows: the cross-entropy of a row's second text among all second texts and hard negatives.

    Logits are `scale` x cosine. `numbers_RG` are the texts' numbers, equal for equal texts and below 0 where there is
    none: see `excluded`.
    """
    units_RGD = F.normalize(vectors_RGD.float(), dim=-1)
    candidates_CD = units_RGD[:, 1:].transpose(0, 1).flatten(0, 1)  # the rows' own second texts come first
    logits_RC = scale * (units_RGD[:, 0] @ candidates_CD.T)
    logits_RC = logits_RC.masked_fill(excluded(numbers_RG), -torch.inf)
    own_R = torch.arange(len(logits_RC), device=logits_RC.device)
    return F.cross_entropy(logits_RC, own_R, reduction="sum")


def excluded(numbers_RG: Tensor) -> Tensor:
    """(R, C) candidates that are no negatives of a row, although they are not its own second text.

    A second text of any row with the same first text is right too, wherever it stands once more; a text is not a
    negative of itself; and a missing hard negative is none.
    """
    first_R, second_R = numbers_RG[:, 0], numbers_RG[:, 1]
    candidates_C = numbers_RG[:, 1:].T.flatten()
    same_first_RR = first_R[:, None] == first_R
    is_second_RC = second_R[:, None] == candidates_C
    right_RC = same_first_RR.float() @ is_second_RC.float() > 0
    itself_RC = first_R[:, None] == candidates_C
    own_RC = torch.eye(len(first_R), len(candidates_C), dtype=torch.bool, device=numbers_RG.device)
    return (right_RC | itself_RC | (candidates_C < 0)) & ~own_RC


def graded_loss(vectors_RGD: Tensor, scores_RG: Tensor, *, scale: float) -> Tensor:
    """CoSENT, times the rows: log(1 + sum of exp(scale (cosine_j - cosine_i)) over rows where i has the higher score).

    Only the order of the scores counts, as for Spearman's correlation: no score has to be made a cosine.
    """
    units_RGD = F.normalize(vectors_RGD.float(), dim=-1)
    cosines_R, scores_R = (units_RGD[:, 0] * units_RGD[:, 1]).sum(-1), scores_RG[:, 0]
    wrong_RR = scale * (cosines_R - cosines_R[:, None])  # row i, column j
    wrong_RR = wrong_RR.masked_fill(scores_R[:, None] <= scores_R, -torch.inf)
    return len(scores_R) * torch.logsumexp(F.pad(wrong_RR.flatten(), (0, 1)), 0)
