"""AdamW as the official implementation runs it: no bias correction, eps outside the root, decoupled decay.

torch's fused kernel cannot switch the correction off, but its correction is 1 - beta**step, which is exactly 1 for
the constant step handed to it here. It takes learning rate, clipping and the skip verdict as device tensors.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from electra.kernels import USABLE
from electra.train.state import Master

if TYPE_CHECKING:
    from electra.kernels.adamw import Groups

_UNCORRECTED = 1e9  # 0.999 ** 1e9 == 0.0 in double precision


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
    """Clips the gradient and moves the weights, all on the device; a non-finite gradient changes nothing.

    On a GPU by kernels, unless `fused` is false.
    """

    def __init__(self, master: Master, optim: Settings, *, fused: bool = True) -> None:
        self._master, self._optim = master, optim
        device = master.weights.device
        self.lr = torch.zeros((), device=device)
        self._step = torch.full((), _UNCORRECTED, device=device)
        together: dict[tuple[float, float], list[slice]] = defaultdict(list)
        for group in master.groups:
            together[group.scale, optim.weight_decay if group.decayed else 0.0].append(group.part)
        self._calls = [(parts, decay) for (_, decay), parts in together.items()]
        self._scales = torch.tensor([scale for scale, _ in together], device=device)
        in_kernel = fused and USABLE and device.type == "cuda"
        self._groups = _groups(master, optim.weight_decay) if in_kernel else None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The gradient's norm before clipping, and 1 where the step was skipped."""
        if self._groups is not None:
            return self._by_kernels(self._groups)
        master, optim = self._master, self._optim
        norm = torch.linalg.vector_norm(master.gradient)
        skipped = (norm - norm != 0).float()  # of what is not finite, NaN
        divisor = (norm / optim.clip).clamp(min=1.0)
        rates = (self.lr * self._scales).unbind()
        for (parts, decay), lr in zip(self._calls, rates, strict=True):
            torch._fused_adamw_(
                [master.weights[part] for part in parts],
                [master.gradient[part] for part in parts],
                [master.average[part] for part in parts],
                [master.square[part] for part in parts],
                [],
                [self._step] * len(parts),
                lr=lr,
                beta1=optim.beta1,
                beta2=optim.beta2,
                weight_decay=decay,
                eps=optim.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
                found_inf=skipped,
            )
        master.refresh()
        return norm, skipped

    def _by_kernels(self, groups: Groups) -> tuple[Tensor, Tensor]:
        from electra.kernels.adamw import adamw
        from electra.kernels.verdict import judge

        master, optim = self._master, self._optim
        norm, skipped, divisor = judge(master.gradient, clip=optim.clip)
        adamw(
            master.weights,
            master.gradient,
            master.average,
            master.square,
            groups,
            lr=self.lr,
            divisor=divisor,
            skipped=skipped,
            beta1=optim.beta1,
            beta2=optim.beta2,
            eps=optim.eps,
            copy=master.copy,
            copied=master.copied,
        )
        return norm, skipped


def _groups(master: Master, decay: float) -> Groups:
    from electra.kernels.adamw import Groups

    found = [(group.part.stop, group.scale, decay if group.decayed else 0.0) for group in master.groups]
    return Groups(found, master.weights.device)
