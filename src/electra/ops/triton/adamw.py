"""AdamW over the flat buffers in one kernel, with clipping, skipping, groups and the copy in compute precision.

Each weight has its group's number in a byte: comparing its index with where the groups end takes longer than the rest.
Reference: `reference/adamw.py`.

Shapes: N parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import GradNorm, ParameterGroup

_BLOCK = 1024


@triton.jit
def _adamw_kernel(  # type: ignore[no-untyped-def]
    weights, gradient, average, square,  # (count,) fp32
    copy,  # (copied_to - copied_from,)
    groups,  # (count,) uint8
    scales, decays,  # (groups,) fp32
    lr, divisor, skipped,  # scalars, fp32
    count, copied_from, copied_to, beta2, rest1, rest2, eps,  # rest: 1 - beta
    COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A skipped step changes nothing, and the copy stays what it was.
    inside = index < tl.where(tl.load(skipped) == 0.0, count, 0)
    group = tl.load(groups + index, inside, 0)
    rate = tl.load(lr) * tl.load(scales + group, inside, 0.0)
    w = tl.load(weights + index, inside, 0.0)
    g = tl.load(gradient + index, inside, 0.0) / tl.load(divisor)
    m = tl.load(average + index, inside, 0.0)
    v = tl.load(square + index, inside, 0.0)
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    w = w * (1.0 - rate * tl.load(decays + group, inside, 0.0)) - rate * m / (tl.sqrt(v) + eps)
    tl.store(weights + index, w, inside)
    tl.store(average + index, m, inside)
    tl.store(square + index, v, inside)
    if COPY:
        there = inside & (index >= copied_from) & (index < copied_to)
        tl.store(copy + index - copied_from, w.to(copy.dtype.element_ty), there)


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
    assert len(groups) <= 256, "a group's number is a byte"
    count, device = len(weights_N), weights_N.device
    assert sum(group.part.stop - group.part.start for group in groups) == count, "every weight is in one group"
    numbers_N = torch.empty(count, dtype=torch.uint8)
    for number, group in enumerate(groups):
        numbers_N[group.part] = number
    numbers_N = numbers_N.to(device)
    scales, decays = (
        torch.tensor(numbers, dtype=torch.float32, device=device)
        for numbers in ([group.scale for group in groups], [group.weight_decay for group in groups])
    )
    buffers = (weights_N, gradient_N, average_N, square_N, weights_N if copy is None else copy)
    # Scalars reach the kernel in fp32, where 1 - 0.999 would be off by 1e-5.
    rates = (beta2, 1 - beta1, 1 - beta2, eps)

    def update(norm: GradNorm) -> None:
        with torch.cuda.device_of(weights_N):
            _adamw_kernel[(triton.cdiv(count, _BLOCK),)](
                *buffers, numbers_N, scales, decays, lr, norm.divisor, norm.skipped, count,
                copied.start, copied.stop, *rates, COPY=copy is not None, BLOCK=_BLOCK, num_warps=4,
            )  # fmt: skip

    return update
