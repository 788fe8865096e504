"""Loss and sample of a distribution over the vocabulary, in one reading of the logits.

A program reads a row as blocks of 128 entries: it finds the loss of the right entry, draws a block by its total, then
an entry inside that block. The plain twin is in `objective.propose`.

Shapes: M rows, V vocabulary (whole blocks), K blocks, T entries of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.hashing import mix, word

BLOCK = 128
STEP = 32  # blocks at a time
WARPS = 8


@triton.jit
def _uniform(words):  # type: ignore[no-untyped-def]
    """`rng.uniform`."""
    return ((words >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def _pick(weights, places, draw):  # type: ignore[no-untyped-def]
    """The index that a uniform draw falls on when the weights are laid end to end."""
    ends = tl.cumsum(weights, 0)
    below = tl.sum((ends <= draw * tl.max(ends, 0)).to(tl.int32), 0)
    return tl.minimum(below, tl.max(tl.where(weights > 0, places, 0), 0))


@triton.jit
def _vocabulary_forward(  # type: ignore[no-untyped-def]
    logits, gold, keys, totals, loss, level, sampled, size,
    K: tl.constexpr, T: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * size
    scratch = totals + row.to(tl.int64) * K
    blocks_K = tl.arange(0, K)
    inside_T = tl.arange(0, T)
    block_S = tl.arange(0, STEP)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for first in tl.range(0, K, STEP, num_stages=2):
        place_ST = (first + block_S)[:, None] * T + inside_T[None, :]
        x_ST = tl.load(start + place_ST, place_ST < size, float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(tl.max(x_ST, 1), 0))
        level_S = tl.maximum(tl.max(x_ST, 1), -1e30)
        sum_S = tl.sum(tl.exp(x_ST - level_S[:, None]), 1)
        # A block's total as a logarithm, since the row's highest entry is not known yet.
        tl.store(scratch + first + block_S, level_S + tl.log(tl.maximum(sum_S, 1e-37)))
        total = total * tl.exp(top - higher) + tl.sum(sum_S * tl.exp(level_S - higher), 0)
        top = higher
    log_total = top + tl.log(total)
    tl.store(level + row, log_total)
    tl.store(loss + row, log_total - tl.load(start + tl.load(gold + row)).to(tl.float32))
    key = word(tl.load(keys + row))
    zero = tl.zeros([], tl.uint32)
    tl.debug_barrier()
    total_K = tl.exp(tl.load(scratch + blocks_K) - log_total)
    block = _pick(total_K, blocks_K, _uniform(mix(key ^ mix(zero))))
    weights_T = tl.exp(tl.load(start + block * T + inside_T).to(tl.float32) - log_total)
    entry = _pick(weights_T, inside_T, _uniform(mix(key ^ mix(zero + 1))))
    tl.store(sampled + row, (block * T + entry).to(tl.int64))


@triton.jit
def _vocabulary_backward(  # type: ignore[no-untyped-def]
    logits, gold, level, gradient, out, size, STEP: tl.constexpr
):
    row = tl.program_id(0)
    start = row.to(tl.int64) * size
    place = tl.program_id(1) * STEP + tl.arange(0, STEP)
    x = tl.load(logits + start + place, place < size, float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.load(level + row))
    p = tl.where(place == tl.load(gold + row), p - 1.0, p) * tl.load(gradient + row)
    tl.store(out + start + place, p.to(out.dtype.element_ty), place < size)


class _LossAndSample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor) -> tuple[Tensor, Tensor]:
        rows, size = logits_MV.shape
        loss_M, level_M = torch.empty(2, rows, dtype=torch.float32, device=logits_MV.device).unbind()
        sampled_M = torch.empty(rows, dtype=torch.long, device=logits_MV.device)
        blocks = triton.next_power_of_2(triton.cdiv(size, BLOCK))
        totals_MK = torch.empty(rows, blocks, dtype=torch.float32, device=logits_MV.device)
        _vocabulary_forward[(rows,)](
            logits_MV, gold_M, keys_M, totals_MK, loss_M, level_M, sampled_M, size,
            K=blocks, T=BLOCK, STEP=min(STEP, blocks), num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(logits_MV, gold_M, level_M)
        ctx.mark_non_differentiable(sampled_M)
        return loss_M, sampled_M

    @staticmethod
    def backward(ctx: Any, gradient_M: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, gold_M, level_M = ctx.saved_tensors
        rows, size = logits_MV.shape
        out_MV = torch.empty_like(logits_MV)
        grid = (rows, triton.cdiv(size, 4096))
        _vocabulary_backward[grid](
            logits_MV, gold_M, level_M, gradient_M.contiguous(), out_MV, size, STEP=4096, num_warps=4
        )
        return out_MV, None, None


@torch.compiler.disable
def loss_and_sample(logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor) -> tuple[Tensor, Tensor]:
    """(M,) losses of the gold entries, and (M,) entries drawn from the distributions; V is a multiple of 128."""
    loss_M, sampled_M = _LossAndSample.apply(  # type: ignore[no-untyped-call]
        logits_MV.contiguous(), gold_M.contiguous(), keys_M.contiguous()
    )
    return loss_M, sampled_M
