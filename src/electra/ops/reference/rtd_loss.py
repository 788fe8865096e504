"""Binary cross-entropy of [corrupted ≠ original], and the statistics of the log."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops import Detection


def rtd_loss(
    logits_BL: Tensor,
    corrupted_ids_BL: Tensor,
    ids_BL: Tensor,
    lengths_B: Tensor,
    used_BM: Tensor,
    scored_BL: Tensor | None = None,
) -> Detection:
    if scored_BL is None:
        scored_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device) < lengths_B[:, None]
    replaced_BL = corrupted_ids_BL != ids_BL
    bce_BL = F.binary_cross_entropy_with_logits(logits_BL, replaced_BL.float(), reduction="none")
    loss = (bce_BL * scored_BL).sum()
    correct = (((logits_BL > 0) == replaced_BL) & scored_BL).sum()
    stats = (used_BM.sum(), loss.detach(), lengths_B.sum(), replaced_BL.sum(), correct, scored_BL.sum())
    return Detection(loss, torch.stack([value.float() for value in stats]), bce_BL)
