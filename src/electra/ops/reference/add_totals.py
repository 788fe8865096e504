"""A step's sums added to the running totals, which end with counts of steps and of skipped ones."""

from __future__ import annotations

import torch
from torch import Tensor


def add_totals(totals: Tensor, last_norm: Tensor, sums_S: Tensor, *, norm: Tensor, skipped: Tensor) -> None:
    finite_S = torch.nan_to_num(sums_S, 0.0, 0.0, 0.0) * (1.0 - skipped)
    last_norm.copy_(norm)
    totals += torch.cat((finite_S, torch.ones_like(skipped)[None], skipped[None]))
