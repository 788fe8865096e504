"""How many masked positions are in use and how many tokens are real: the denominators of both losses."""

from __future__ import annotations

import torch
from torch import Tensor


def count_targets(used_BM: Tensor, lengths_B: Tensor) -> Tensor:
    return torch.stack((used_BM.sum(), lengths_B.sum())).float()
