"""AdamW as the official implementation runs it: no bias correction, eps outside the root, decoupled decay.

torch's fused kernel cannot switch the correction off, but its correction is 1 - beta**step, which is exactly 1 for
the constant step handed to it here. It takes learning rate, clipping and the skip verdict as device tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from electra.config.schema import OptimConfig
from electra.train.state import Master

_UNCORRECTED = 1e9  # 0.999 ** 1e9 == 0.0 in double precision


class Update:
    """Clips the gradient and moves the weights, all on the device; a non-finite gradient changes nothing."""

    def __init__(self, master: Master, optim: OptimConfig) -> None:
        self._master, self._optim = master, optim
        device = master.weights.device
        self.lr = torch.zeros((), device=device)
        self._step = torch.full((), _UNCORRECTED, device=device)

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The gradient's norm before clipping, and 1 where the step was skipped."""
        master, optim = self._master, self._optim
        norm = torch.linalg.vector_norm(master.gradient)
        skipped = (~torch.isfinite(norm)).float()
        divisor = (norm / optim.clip).clamp(min=1.0)
        split = master.decayed
        for part, decay in ((slice(0, split), optim.weight_decay), (slice(split, None), 0.0)):
            torch._fused_adamw_(
                [master.weights[part]],
                [master.gradient[part]],
                [master.average[part]],
                [master.square[part]],
                [],
                [self._step],
                lr=self.lr,
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
