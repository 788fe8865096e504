"""The weighted sum of both networks' mean losses."""

from __future__ import annotations

from torch import Tensor


def joint_loss(rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, *, rtd_weight: float, mlm_weight: float) -> Tensor:
    return rtd_weight * rtd_sum / counts[1].clamp(min=1) + mlm_weight * mlm_sum / counts[0].clamp(min=1)
