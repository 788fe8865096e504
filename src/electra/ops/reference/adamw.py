"""AdamW as the official implementation runs it: no bias correction, eps outside the root, decoupled decay.

torch's fused kernel cannot switch the correction off, but its correction is 1 - beta**step, which is exactly 1 for
the constant step handed to it here. It takes learning rate, clipping and the skip flag as device tensors. Where it
clips, it leaves the clipped gradient in the gradient's place.

Shapes: N parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from electra.ops import GradNorm, ParameterGroup

_UNCORRECTED = 1e9  # 0.999 ** 1e9 == 0.0 in double precision


def adamw(
    weights_N: Tensor,
    gradient_N: Tensor,
    average_N: Tensor,
    square_N: Tensor,
    groups: Sequence[ParameterGroup],
    *,
    lr: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    copy: Tensor | None,
    copied: slice,
) -> Callable[[GradNorm], None]:
    device = weights_N.device
    step = torch.full((), _UNCORRECTED, device=device)
    together: dict[tuple[float, float], list[slice]] = defaultdict(list)
    for group in groups:
        together[group.scale, group.weight_decay].append(group.part)
    scales = torch.tensor([scale for scale, _ in together], device=device)

    def update(norm: GradNorm) -> None:
        for ((scale, decay), parts), rate in zip(together.items(), (lr * scales).unbind(), strict=True):
            gradients = [gradient_N[part] for part in parts]
            if not scale:  # what moves these weights instead clips their gradient itself
                gradients = [gradient / norm.divisor for gradient in gradients]
            torch._fused_adamw_(
                [weights_N[part] for part in parts],
                gradients,
                [average_N[part] for part in parts],
                [square_N[part] for part in parts],
                [],
                [step] * len(parts),
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=decay,
                eps=eps,
                amsgrad=False,
                maximize=False,
                grad_scale=norm.divisor if scale else None,
                found_inf=norm.skipped,
            )
        if copy is not None:
            copy.copy_(weights_N[copied])

    return update
