"""-log softmax(x · tableᵀ + bias)[gold] and a sample, through logits in memory: a library product, then one kernel.

Before it a kernel rounds the table and pads it to whole blocks of 128 entries. A program reads a row of logits once: it
keeps the log-sum-exp of each block, then draws a block by its total and an entry inside it. Backward, programs write
the gradient of the logits and partial sums of the bias gradient. Reference: `reference/linear_cross_entropy.py`.

Shapes: M rows, E embedding size, V vocabulary, W the same in whole blocks, K blocks, T entries of a block, P rows of
partial sums.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import NEVER, VOCAB_BLOCK, Prediction
from electra.ops.first_order import first_order_only
from electra.ops.triton.hash import bits, uniform, unsigned
from electra.ops.triton.partial_sums import sum_rows

_BLOCKS_A_STEP = 32
WARPS = 4
_PADDED = 2048  # numbers that a program of the padding kernel rounds
_ROWS, _COLUMNS, MAX_PARTIAL_ROWS = 4, 1024, 64
"""Of a program of the backward kernel, at a time, and how many rows of partial sums all write at most."""


@triton.jit
def pick(weights, index, draw):  # type: ignore[no-untyped-def]
    """The index that a uniform draw falls on when the weights are laid end to end."""
    ends = tl.cumsum(weights, 0)
    below = tl.sum((ends <= draw * tl.max(ends, 0)).to(tl.int32), 0)
    return tl.minimum(below, tl.max(tl.where(weights > 0, index, 0), 0))


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    logits,  # (M, size)
    gold,  # (M,) int64
    keys,  # (M,) int32
    block_lse,  # (M, K) fp32
    nll, lse,  # (M,) fp32
    sampled,  # (M,) int64
    size, K: tl.constexpr, T: tl.constexpr, STEP: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * size
    scratch = block_lse + row.to(tl.int64) * K
    blocks_K = tl.arange(0, K)
    entry_T = tl.arange(0, T)
    block_S = tl.arange(0, STEP)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for first in tl.range(0, K, STEP, num_stages=2):
        index_ST = (first + block_S)[:, None] * T + entry_T[None, :]
        x_ST = tl.load(start + index_ST, index_ST < size, float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(tl.max(x_ST, 1), 0))
        top_S = tl.maximum(tl.max(x_ST, 1), -1e30)
        sum_S = tl.sum(tl.exp(x_ST - top_S[:, None]), 1)
        # A block's total as a logarithm, since the row's highest entry is not known yet.
        tl.store(scratch + first + block_S, top_S + tl.log(tl.maximum(sum_S, 1e-37)))
        total = total * tl.exp(top - higher) + tl.sum(sum_S * tl.exp(top_S - higher), 0)
        top = higher
    row_lse = top + tl.log(total)
    tl.store(lse + row, row_lse)
    tl.store(nll + row, row_lse - tl.load(start + tl.load(gold + row)).to(tl.float32))
    if SAMPLE:
        key = unsigned(tl.load(keys + row))
        zero = tl.zeros([], tl.int32)
        tl.debug_barrier()
        total_K = tl.exp(tl.load(scratch + blocks_K) - row_lse)
        block = pick(total_K, blocks_K, uniform(bits(key, zero)))
        weights_T = tl.exp(tl.load(start + block * T + entry_T).to(tl.float32) - row_lse)
        entry = pick(weights_T, entry_T, uniform(bits(key, zero + 1)))
        tl.store(sampled + row, (block * T + entry).to(tl.int64))


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    logits,  # (M, size)
    gold,  # (M,) int64
    lse, gradient,  # (M,) fp32
    d_logits,  # (M, size)
    sums,  # (P, size) fp32 partial sums of the bias gradient
    rows, size, steps, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    index_C = tl.program_id(1) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < rows
        inside = here_R[:, None] & (index_C < size)[None, :]
        offset = rows_R.to(tl.int64)[:, None] * size + index_C[None, :]
        x = tl.load(logits + offset, inside, float("-inf")).to(tl.float32)
        p = tl.exp(x - tl.load(lse + rows_R, here_R, 0.0)[:, None])
        p = tl.where(index_C[None, :] == tl.load(gold + rows_R, here_R, -1)[:, None], p - 1.0, p)
        p = p * tl.load(gradient + rows_R, here_R, 0.0)[:, None]
        tl.store(d_logits + offset, p.to(d_logits.dtype.element_ty), inside)
        total_RC += p
    tl.store(sums + tl.program_id(0).to(tl.int64) * size + index_C, tl.sum(total_RC, 0), index_C < size)


@triton.jit
def _pad_kernel(  # type: ignore[no-untyped-def]
    table,  # (entries, size)
    bias,  # (entries,)
    out,  # (padded, size)
    out_bias,  # (padded,)
    entries, padded, size, never, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype = out.dtype.element_ty
    first = tl.program_id(0) * BLOCK
    index = first + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(table + index, index < entries * size, 0.0).to(dtype), index < padded * size)
    if first < padded:
        tl.store(out_bias + index, tl.load(bias + index, index < entries, never).to(dtype), index < padded)


def pad_table(table_VE: Tensor, bias_V: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Table and bias in `dtype`, padded to whole blocks with entries of zero whose logit no softmax picks."""
    entries, size = table_VE.shape
    padded = triton.cdiv(entries, VOCAB_BLOCK) * VOCAB_BLOCK
    if padded == entries and table_VE.dtype == bias_V.dtype == dtype:
        return table_VE.contiguous(), bias_V.contiguous()
    table_WE = torch.empty(padded, size, dtype=dtype, device=table_VE.device)
    bias_W = torch.empty(padded, dtype=dtype, device=table_VE.device)
    _pad_kernel[(triton.cdiv(padded * size, _PADDED),)](
        table_VE.contiguous(), bias_V.contiguous(), table_WE, bias_W, entries, padded, size, NEVER, BLOCK=_PADDED,
        num_warps=WARPS,
    )  # fmt: skip
    return table_WE, bias_W


def linear_cross_entropy(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, *, logits: bool
) -> Prediction:
    keys_M = None if keys_M is None else keys_M.contiguous()
    with torch.cuda.device_of(x_ME):
        logits_MW, nll_M, sampled_M = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_ME.contiguous(), table_VE, bias_V, gold_M.contiguous(), keys_M
        )
    # None also where they were made, so that callers meet the same on every machine.
    return Prediction(logits_MW if logits else None, nll_M, None if keys_M is None else sampled_M)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        table_WE, bias_W = pad_table(table_VE, bias_V, x_ME.dtype)
        logits_MW = torch.addmm(bias_W, x_ME, table_WE.t())
        rows, size = logits_MW.shape
        nll_M, lse_M = torch.empty(2, rows, dtype=torch.float32, device=x_ME.device).unbind()
        sampled_M = torch.empty(rows, dtype=torch.long, device=x_ME.device)
        blocks = triton.next_power_of_2(triton.cdiv(size, VOCAB_BLOCK))
        block_lse_MK = torch.empty(rows, blocks, dtype=torch.float32, device=x_ME.device)
        _forward_kernel[(rows,)](
            logits_MW, gold_M, gold_M if keys_M is None else keys_M, block_lse_MK, nll_M, lse_M, sampled_M, size,
            K=blocks, T=VOCAB_BLOCK, STEP=min(_BLOCKS_A_STEP, blocks), SAMPLE=keys_M is not None, num_warps=WARPS,
        )  # fmt: skip
        ctx.entries, ctx.dtypes = len(table_VE), (table_VE.dtype, bias_V.dtype)
        ctx.save_for_backward(x_ME, table_WE, logits_MW, gold_M, lse_M)
        ctx.mark_non_differentiable(sampled_M)
        ctx.set_materialize_grads(False)
        return logits_MW, nll_M, sampled_M

    @staticmethod
    @first_order_only
    def backward(
        ctx: Any, d_logits_MW: Tensor | None, d_nll_M: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x_ME, table_WE, logits_MW, gold_M, lse_M = ctx.saved_tensors
        rows, size = logits_MW.shape
        sums_PW = d_logits_MW
        if d_nll_M is not None:
            steps = triton.cdiv(rows, _ROWS * MAX_PARTIAL_ROWS)
            programs = triton.cdiv(rows, _ROWS * steps)
            sums_PW = torch.empty(programs, size, dtype=torch.float32, device=x_ME.device)
            out_MW = torch.empty_like(logits_MW)
            _backward_kernel[(programs, triton.cdiv(size, _COLUMNS))](
                logits_MW, gold_M, lse_M, d_nll_M.contiguous(), out_MW, sums_PW, rows, size, steps,
                R=_ROWS, C=_COLUMNS, num_warps=WARPS,
            )  # fmt: skip
            if d_logits_MW is not None:
                out_MW += d_logits_MW
                sums_PW = out_MW
            d_logits_MW = out_MW
        if d_logits_MW is None or sums_PW is None:
            return None, None, None, None, None
        d_table_VE, d_bias_V = table_gradients(d_logits_MW, x_ME, sums_PW, ctx.entries, ctx.dtypes)
        return d_logits_MW @ table_WE, d_table_VE, d_bias_V, None, None


def table_gradients(
    d_logits_MW: Tensor, x_ME: Tensor, sums_PW: Tensor, entries: int, dtypes: tuple[torch.dtype, torch.dtype]
) -> tuple[Tensor, Tensor]:
    """Gradients of the table's and the bias's own entries, in their dtypes; `sums_PW` add up to the bias's."""
    d_bias_V = sum_rows(sums_PW[None, :, :entries], dtypes[1])[0]
    left, dtype = d_logits_MW.t(), dtypes[0]
    # Only a GPU's products give another dtype than their factors', and of these only fp32.
    if left.device.type == "cuda" and dtype == torch.float32 and left.dtype in (torch.bfloat16, torch.float16):
        d_table_WE = torch.mm(left, x_ME, out_dtype=dtype)
    else:
        d_table_WE = (left @ x_ME).to(dtype)
    return d_table_WE[:entries], d_bias_V
