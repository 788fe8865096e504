"""Clipping and AdamW over a model's flat buffers."""

from __future__ import annotations

from typing import Protocol

import torch

from electra.ops import GradNorm, Ops, ParameterGroup
from electra.train.state import Master


class Settings(Protocol):
    """The options of AdamW, as pre-training and fine-tuning name them."""

    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip(self) -> float: ...


class Update:
    """Clips the gradient and moves the weights, all on the device; a non-finite gradient changes nothing."""

    def __init__(self, master: Master, optim: Settings, *, ops: Ops) -> None:
        self._master, self._clip, self._ops = master, optim.clip, ops
        self.lr = torch.zeros((), device=master.weights.device)
        groups = [
            ParameterGroup(group.part, group.scale, optim.weight_decay if group.decayed else 0.0)
            for group in master.groups
        ]
        self._adamw = ops.adamw(
            master.weights,
            master.gradient,
            master.average,
            master.square,
            groups,
            lr=self.lr,
            beta1=optim.beta1,
            beta2=optim.beta2,
            eps=optim.eps,
            copy=master.copy,
            copied=master.copied,
        )

    def __call__(self) -> GradNorm:
        """The gradient norm before clipping, and whether the step was skipped."""
        norm = self._ops.grad_norm(self._master.gradient, clip=self._clip)
        self._adamw(norm)
        return norm
