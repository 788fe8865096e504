"""AdamW over flat buffers in one launch: rates and decays of groups, clipping, skipping, the compute-precision copy.

Shapes: N weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _adamw(  # type: ignore[no-untyped-def]
    weights, gradient, average, square, copy, groups, rates, decays, lr, divisor, skipped,
    count, copied_from, copied_to, beta1, beta2, eps,
    COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A non-finite gradient changes nothing, and the copy is what it was.
    inside = place < tl.where(tl.load(skipped) == 0.0, count, 0)
    group = tl.load(groups + place, inside, 0)
    rate = tl.load(lr) * tl.load(rates + group, inside, 0.0)
    w = tl.load(weights + place, inside, 0.0)
    g = tl.load(gradient + place, inside, 0.0) / tl.load(divisor)
    m = tl.load(average + place, inside, 0.0)
    v = tl.load(square + place, inside, 0.0)
    m = m + (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w = w * (1.0 - rate * tl.load(decays + group, inside, 0.0)) - rate * m / (tl.sqrt(v) + eps)
    tl.store(weights + place, w, inside)
    tl.store(average + place, m, inside)
    tl.store(square + place, v, inside)
    if COPY:
        there = inside & (place >= copied_from) & (place < copied_to)
        tl.store(copy + place - copied_from, w.to(copy.dtype.element_ty), there)


class Groups:
    """Which group each weight of the flat buffers is in, how fast each group learns and how much it decays.

    A byte a weight: comparing each weight's place with where the groups end takes longer than the rest of the step.
    """

    def __init__(self, groups: list[tuple[int, float, float]], device: torch.device) -> None:
        """`groups`: end, rate as a fraction of the run's, and weight decay, in the order of the buffers."""
        assert len(groups) <= 256, "a group's number is a byte"
        ends = [end for end, _, _ in groups]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        self.numbers_N = torch.arange(len(groups), dtype=torch.uint8).repeat_interleave(torch.tensor(sizes)).to(device)
        self.rates = torch.tensor([rate for _, rate, _ in groups], dtype=torch.float32, device=device)
        self.decays = torch.tensor([decay for _, _, decay in groups], dtype=torch.float32, device=device)


def adamw(
    weights_N: Tensor, gradient_N: Tensor, average_N: Tensor, square_N: Tensor, groups: Groups, *, lr: Tensor,
    divisor: Tensor, skipped: Tensor, beta1: float, beta2: float, eps: float,
    copy: Tensor | None = None, copied: slice = slice(0, 0),
) -> None:  # fmt: skip
    """One step of AdamW without bias correction, in place; `copy` gets the new weights of the stretch `copied`."""
    count = len(weights_N)
    _adamw[(triton.cdiv(count, BLOCK),)](
        weights_N, gradient_N, average_N, square_N, weights_N if copy is None else copy, groups.numbers_N, groups.rates,
        groups.decays, lr, divisor, skipped, count, copied.start, copied.stop, beta1, beta2, eps,
        COPY=copy is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
