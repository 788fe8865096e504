"""The global gradient norm, whether it is finite, and the divisor that clips it."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.ops import GradNorm


def grad_norm(gradient_N: Tensor, *, clip: float) -> GradNorm:
    norm = torch.linalg.vector_norm(gradient_N)
    skipped = (norm - norm != 0).float()  # of what is not finite, NaN
    return GradNorm(norm, skipped, (norm / clip).clamp(min=1.0))
