"""A network where it computes fastest: on a GPU, in bf16."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from electra import hardware
from electra.model.layers import FullLinear, with_ops
from electra.ops.dispatch import Kernels, select

Part = TypeVar("Part", bound=nn.Module)


def placed(module: Part, kernels: Kernels, device: torch.device, *, precision: str = "auto") -> Part:
    """A copy on a device, in bf16 where that is native; norms, token tables and answers' last layers stay fp32."""
    dtype = hardware.compute_dtype(precision, device)
    copied = with_ops(module, select(kernels, device=device, dtype=dtype), dtype).to(device)
    for layer in copied.modules():
        if isinstance(layer, nn.Linear) and not isinstance(layer, FullLinear):
            layer.to(dtype)
    return copied
