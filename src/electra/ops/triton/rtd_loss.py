"""Binary cross-entropy of [corrupted ≠ original] over real tokens, with its gradient and the log's statistics.

One kernel reads logits and ids once, one program a sequence: it writes each token's loss and its derivative, and one
row of partial sums of the statistics. Backward is one multiplication. Reference: `reference/rtd_loss.py`.

Shapes: B sequences, L length (in the kernel the power of two that holds it), M masked positions of a sequence, N = 6
statistics.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import Detection
from electra.ops.first_order import first_order_only
from electra.ops.triton.choose_masked import with_whole_rows
from electra.ops.triton.partial_sums import sum_into

_STATS = 6


@triton.jit
def _loss_kernel(  # type: ignore[no-untyped-def]
    logits,  # (B, width) fp32
    corrupted_ids,  # (B, width)
    ids,  # (B, width), rows `ids_stride` apart
    lengths,  # (B,), `lengths_stride` apart
    used,  # (B, masked) bool
    bce, derivatives,  # (B, width) fp32
    sums,  # (B, N) fp32
    ids_stride, lengths_stride, width, masked,
    L: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    position_L, number_M = tl.arange(0, L), tl.arange(0, M)
    inside_L = position_L < width
    length = tl.load(lengths + sequence * lengths_stride)
    logit_L = tl.load(logits + sequence * width + position_L, inside_L, 0.0)
    corrupted_L = tl.load(corrupted_ids + sequence * width + position_L, inside_L, 0)
    id_L = tl.load(ids + sequence * ids_stride + position_L, inside_L, 0)
    replaced_L, real_L = corrupted_L != id_L, position_L < length
    label_L = replaced_L.to(tl.float32)
    small_L = tl.exp(-tl.abs(logit_L))
    bce_L = tl.maximum(logit_L, 0.0) - logit_L * label_L + tl.log(1.0 + small_L)
    derivative_L = tl.where(logit_L > 0, 1.0, small_L) / (1.0 + small_L) - label_L
    tl.store(bce + sequence * width + position_L, bce_L, inside_L)
    tl.store(derivatives + sequence * width + position_L, tl.where(real_L, derivative_L, 0.0), inside_L)
    right_L = ((logit_L > 0) == replaced_L) & real_L
    used_M = tl.load(used + sequence * masked + number_M, number_M < masked, 0).to(tl.float32)
    row = sums + sequence * N
    tl.store(row, tl.sum(used_M, 0))
    tl.store(row + 1, tl.sum(tl.where(real_L, bce_L, 0.0), 0))
    tl.store(row + 2, length.to(tl.float32))
    tl.store(row + 3, tl.sum(label_L, 0))
    tl.store(row + 4, tl.sum(right_L.to(tl.float32), 0))
    tl.store(row + 5, length.to(tl.float32))


def rtd_loss(
    logits_BL: Tensor, corrupted_ids_BL: Tensor, ids_BL: Tensor, lengths_B: Tensor, used_BM: Tensor
) -> Detection:
    with torch.cuda.device_of(logits_BL):
        found: tuple[Tensor, Tensor, Tensor] = _RtdLoss.apply(  # type: ignore[no-untyped-call]
            logits_BL.float(), corrupted_ids_BL, with_whole_rows(ids_BL), lengths_B, used_BM
        )
    return Detection(*found)


class _RtdLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_BL: Tensor, corrupted_ids_BL: Tensor, ids_BL: Tensor, lengths_B: Tensor, used_BM: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (sequences, length), masked, device = logits_BL.shape, used_BM.shape[1], logits_BL.device
        bce_BL, derivative_BL = torch.empty(2, sequences, length, dtype=torch.float32, device=device).unbind()
        sums_BN = torch.empty(sequences, _STATS, dtype=torch.float32, device=device)
        _loss_kernel[(sequences,)](
            logits_BL.contiguous(), corrupted_ids_BL.contiguous(), ids_BL, lengths_B, used_BM.contiguous(),
            bce_BL, derivative_BL, sums_BN, ids_BL.stride(0), lengths_B.stride(0), length, masked,
            L=triton.next_power_of_2(length), M=triton.next_power_of_2(masked), N=_STATS, num_warps=4,
        )  # fmt: skip
        stats_N = torch.empty(_STATS, dtype=torch.float32, device=device)
        loss = torch.empty((), dtype=torch.float32, device=device)
        sum_into((sums_BN[None], stats_N[None]), (sums_BN[None, :, 1:2], loss.view(1, 1)))
        ctx.save_for_backward(derivative_BL)
        ctx.mark_non_differentiable(stats_N, bce_BL)
        ctx.set_materialize_grads(False)
        return loss, stats_N, bce_BL

    @staticmethod
    @first_order_only
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        (derivative_BL,) = ctx.saved_tensors
        return None if gradient is None else derivative_BL * gradient, None, None, None, None
