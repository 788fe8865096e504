"""The detection loss and everything that is counted beside it: one reading of scores and ids, a program a text.

And the sum of the generator's losses, and the loss of both networks.

The plain twin is in `objective.rtd`.

Shapes: B texts, L length, S slots, N figures.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.sums import sum_into

FIGURES = 6
ADDED = 4096  # losses at a time


@triton.jit
def _detect(  # type: ignore[no-untyped-def]
    scores, seen, ids, lengths, used, losses, slopes, lines, row, length_row, width, slots,
    L: tl.constexpr, S: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    text = tl.program_id(0).to(tl.int64)
    place_L, number_S = tl.arange(0, L), tl.arange(0, S)
    inside_L = place_L < width
    length = tl.load(lengths + text * length_row)
    score_L = tl.load(scores + text * width + place_L, inside_L, 0.0)
    seen_L = tl.load(seen + text * width + place_L, inside_L, 0)
    id_L = tl.load(ids + text * row + place_L, inside_L, 0)
    replaced_L, real_L = seen_L != id_L, place_L < length
    label_L = replaced_L.to(tl.float32)
    small_L = tl.exp(-tl.abs(score_L))
    loss_L = tl.maximum(score_L, 0.0) - score_L * label_L + tl.log(1.0 + small_L)
    slope_L = tl.where(score_L > 0, 1.0, small_L) / (1.0 + small_L) - label_L
    tl.store(losses + text * width + place_L, loss_L, inside_L)
    tl.store(slopes + text * width + place_L, tl.where(real_L, slope_L, 0.0), inside_L)
    right_L = ((score_L > 0) == replaced_L) & real_L
    used_S = tl.load(used + text * slots + number_S, number_S < slots, 0).to(tl.float32)
    line = lines + text * N
    tl.store(line, tl.sum(used_S, 0))
    tl.store(line + 1, tl.sum(tl.where(real_L, loss_L, 0.0), 0))
    tl.store(line + 2, length.to(tl.float32))
    tl.store(line + 3, tl.sum(label_L, 0))
    tl.store(line + 4, tl.sum(right_L.to(tl.float32), 0))
    tl.store(line + 5, length.to(tl.float32))


class _Detect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores_BL: Tensor, seen_BL: Tensor, ids_BL: Tensor, lengths_B: Tensor, used_BS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (texts, length), slots = scores_BL.shape, used_BS.shape[1]
        losses_BL, slopes_BL = torch.empty(2, texts, length, dtype=torch.float32, device=scores_BL.device).unbind()
        lines_BN = torch.empty(texts, FIGURES, dtype=torch.float32, device=scores_BL.device)
        _detect[(texts,)](
            scores_BL.contiguous(), seen_BL.contiguous(), ids_BL, lengths_B, used_BS.contiguous(),
            losses_BL, slopes_BL, lines_BN, ids_BL.stride(0), lengths_B.stride(0), length, slots,
            L=triton.next_power_of_2(length), S=triton.next_power_of_2(slots), N=FIGURES, num_warps=4,
        )  # fmt: skip
        figures_N = torch.empty(FIGURES, dtype=torch.float32, device=scores_BL.device)
        loss = torch.empty((), dtype=torch.float32, device=scores_BL.device)
        sum_into((lines_BN[None], figures_N[None]), (lines_BN[None, :, 1:2], loss.view(1, 1)))
        ctx.save_for_backward(slopes_BL)
        ctx.mark_non_differentiable(figures_N, losses_BL)
        ctx.set_materialize_grads(False)
        return loss, figures_N, losses_BL

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        (slopes_BL,) = ctx.saved_tensors
        return None if gradient is None else slopes_BL * gradient, None, None, None, None


def detect(
    scores_BL: Tensor, seen_BL: Tensor, ids_BL: Tensor, lengths_B: Tensor, used_BS: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss over all real tokens; slots, loss, tokens, replaced, right and judged ones; the loss token by token."""
    with torch.cuda.device_of(scores_BL):
        found: tuple[Tensor, Tensor, Tensor] = _Detect.apply(  # type: ignore[no-untyped-call]
            scores_BL.float(), seen_BL, ids_BL, lengths_B, used_BS
        )
    return found


@triton.jit
def _weigh(rtd_sum, mlm_sum, counts, shares, loss, rtd_weight, mlm_weight):  # type: ignore[no-untyped-def]
    rtd_share = rtd_weight / tl.maximum(tl.load(counts + 1), 1.0)
    mlm_share = mlm_weight / tl.maximum(tl.load(counts), 1.0)
    tl.store(shares, rtd_share)
    tl.store(shares + 1, mlm_share)
    tl.store(loss, rtd_share * tl.load(rtd_sum) + mlm_share * tl.load(mlm_sum))


class _Weigh(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, rtd_weight: float, mlm_weight: float
    ) -> Tensor:
        loss = torch.empty_like(rtd_sum)
        shares_2 = torch.empty(2, dtype=torch.float32, device=rtd_sum.device)
        _weigh[(1,)](rtd_sum, mlm_sum, counts, shares_2, loss, rtd_weight, mlm_weight, num_warps=1)
        ctx.save_for_backward(shares_2)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rtd, mlm = (ctx.saved_tensors[0] * gradient).unbind()
        return rtd, mlm, None, None, None


@torch.compiler.disable
def weigh(rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, *, rtd_weight: float, mlm_weight: float) -> Tensor:
    """The weighted sum of both networks' mean losses; `counts` begin with the slots' and that of the tokens judged."""
    with torch.cuda.device_of(rtd_sum):
        loss: Tensor = _Weigh.apply(  # type: ignore[no-untyped-call]
            rtd_sum, mlm_sum, counts.contiguous(), float(rtd_weight), float(mlm_weight)
        )
    return loss


@triton.jit
def _sum_used(losses, used, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        loss = tl.load(losses + place, place < count, 0.0)
        total += loss * tl.load(used + place, place < count, 0).to(tl.float32)
    tl.store(out, tl.sum(total, 0))


class _SumUsed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses_M: Tensor, used_M: Tensor) -> Tensor:
        out = torch.empty((), dtype=torch.float32, device=losses_M.device)
        _sum_used[(1,)](losses_M, used_M, out, len(losses_M), BLOCK=ADDED, num_warps=8)
        ctx.save_for_backward(used_M)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * gradient, None


def sum_used(losses_M: Tensor, used_M: Tensor) -> Tensor:
    """The fp32 losses that are in use, added up."""
    with torch.cuda.device_of(losses_M):
        total: Tensor = _SumUsed.apply(losses_M.contiguous(), used_M.contiguous())  # type: ignore[no-untyped-call]
    return total
