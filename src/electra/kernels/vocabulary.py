"""A distribution over the vocabulary: its logits, then loss and sample in one reading of them.

Before it one kernel rounds the token table and the bias and fills them up to whole blocks.

A program reads a row as blocks of 128 entries: it finds the loss of the right entry, draws a block by its total, then
an entry inside that block. The way back leaves the bias gradient's sums behind. The plain twin is in `objective.words`.

Who needs no logits has none in memory where `judge` knows the shapes: it leaves the blocks' totals only, and the logits
of the one block that was drawn are computed once more.

Shapes: M rows, E embedding size, V vocabulary, W the same in whole blocks, K blocks, T entries of a block, P lines of
sums.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import judge
from electra.kernels.hashing import mix, uniform, word
from electra.kernels.sums import sum_lines

BLOCK = 128
STEP = 32  # blocks at a time
WARPS = 4
FILLED = 2048  # numbers that a program rounds
ROWS, COLUMNS, MOST_LINES = 4, 1024, 64
"""Of a program on the way back, at a time, and how many lines of sums all programs write at most."""


@triton.jit
def _pick(weights, places, draw):  # type: ignore[no-untyped-def]
    """The index that a uniform draw falls on when the weights are laid end to end."""
    ends = tl.cumsum(weights, 0)
    below = tl.sum((ends <= draw * tl.max(ends, 0)).to(tl.int32), 0)
    return tl.minimum(below, tl.max(tl.where(weights > 0, places, 0), 0))


@triton.jit
def _vocabulary_forward(  # type: ignore[no-untyped-def]
    logits, gold, keys, totals, loss, level, sampled, size,
    K: tl.constexpr, T: tl.constexpr, STEP: tl.constexpr, SAMPLE: tl.constexpr,
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
    if SAMPLE:
        key = word(tl.load(keys + row))
        zero = tl.zeros([], tl.uint32)
        tl.debug_barrier()
        total_K = tl.exp(tl.load(scratch + blocks_K) - log_total)
        block = _pick(total_K, blocks_K, uniform(mix(key ^ mix(zero))))
        weights_T = tl.exp(tl.load(start + block * T + inside_T).to(tl.float32) - log_total)
        entry = _pick(weights_T, inside_T, uniform(mix(key ^ mix(zero + 1))))
        tl.store(sampled + row, (block * T + entry).to(tl.int64))


@triton.jit
def _finish(  # type: ignore[no-untyped-def]
    x, table, bias, totals, gold, keys, loss, level, sampled, blocks,
    E: tl.constexpr, K: tl.constexpr, T: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    inside_E = tl.arange(0, E)
    blocks_K = tl.arange(0, K)
    x_E = tl.load(x + row * E + inside_E).to(tl.float32)
    total_K = tl.load(totals + row * blocks + blocks_K, blocks_K < blocks, float("-inf"))
    top = tl.max(total_K, 0)
    log_total = top + tl.log(tl.sum(tl.exp(total_K - top), 0))
    right = tl.load(gold + row)
    logit = tl.sum(tl.load(table + right * E + inside_E).to(tl.float32) * x_E, 0) + tl.load(bias + right).to(tl.float32)
    tl.store(level + row, log_total)
    tl.store(loss + row, log_total - logit)
    if SAMPLE:
        key = word(tl.load(keys + row))
        zero = tl.zeros([], tl.uint32)
        block = _pick(tl.exp(total_K - log_total), blocks_K, uniform(mix(key ^ mix(zero))))
        inside_T = tl.arange(0, T)
        place_T = block * T + inside_T
        table_TE = tl.load(table + place_T[:, None] * E + inside_E[None, :]).to(tl.float32)
        logit_T = tl.sum(table_TE * x_E[None, :], 1) + tl.load(bias + place_T).to(tl.float32)
        entry = _pick(tl.exp(logit_T - log_total), inside_T, uniform(mix(key ^ mix(zero + 1))))
        tl.store(sampled + row, (block * T + entry).to(tl.int64))


@triton.jit
def _vocabulary_backward(  # type: ignore[no-untyped-def]
    logits, gold, level, gradient, out, sums, rows, size, steps, R: tl.constexpr, C: tl.constexpr
):
    place_C = tl.program_id(1) * C + tl.arange(0, C)
    total_RC = tl.zeros([R, C], tl.float32)
    for step in range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < rows
        inside = here_R[:, None] & (place_C < size)[None, :]
        place = rows_R.to(tl.int64)[:, None] * size + place_C[None, :]
        x = tl.load(logits + place, inside, float("-inf")).to(tl.float32)
        p = tl.exp(x - tl.load(level + rows_R, here_R, 0.0)[:, None])
        p = tl.where(place_C[None, :] == tl.load(gold + rows_R, here_R, -1)[:, None], p - 1.0, p)
        p = p * tl.load(gradient + rows_R, here_R, 0.0)[:, None]
        tl.store(out + place, p.to(out.dtype.element_ty), inside)
        total_RC += p
    line = sums + tl.program_id(0).to(tl.int64) * size
    tl.store(line + place_C, tl.sum(total_RC, 0), place_C < size)


@triton.jit
def _fill_up(table, bias, out, out_bias, entries, whole, size, never, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    kind = out.dtype.element_ty
    first = tl.program_id(0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(table + place, place < entries * size, 0.0).to(kind), place < whole * size)
    if first < whole:
        tl.store(out_bias + place, tl.load(bias + place, place < entries, never).to(kind), place < whole)


def fill_up(table_VE: Tensor, bias_V: Tensor, dtype: torch.dtype, *, never: float) -> tuple[Tensor, Tensor]:
    """Table and bias, rounded and filled up to whole blocks with entries of zero, whose bias is `never`."""
    entries, size = table_VE.shape
    whole = triton.cdiv(entries, BLOCK) * BLOCK
    if whole == entries and table_VE.dtype == bias_V.dtype == dtype:
        return table_VE.contiguous(), bias_V.contiguous()
    table_WE = torch.empty(whole, size, dtype=dtype, device=table_VE.device)
    bias_W = torch.empty(whole, dtype=dtype, device=table_VE.device)
    _fill_up[(triton.cdiv(whole * size, FILLED),)](
        table_VE.contiguous(), bias_V.contiguous(), table_WE, bias_W, entries, whole, size, never, BLOCK=FILLED,
        num_warps=WARPS,
    )  # fmt: skip
    return table_WE, bias_W


class _Predict(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, never: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        table_WE, bias_W = fill_up(table_VE, bias_V, x_ME.dtype, never=never)
        logits_MW = torch.addmm(bias_W, x_ME, table_WE.t())
        rows, size = logits_MW.shape
        loss_M, level_M = torch.empty(2, rows, dtype=torch.float32, device=x_ME.device).unbind()
        sampled_M = torch.empty(rows, dtype=torch.long, device=x_ME.device)
        blocks = triton.next_power_of_2(triton.cdiv(size, BLOCK))
        totals_MK = torch.empty(rows, blocks, dtype=torch.float32, device=x_ME.device)
        _vocabulary_forward[(rows,)](
            logits_MW, gold_M, gold_M if keys_M is None else keys_M, totals_MK, loss_M, level_M, sampled_M, size,
            K=blocks, T=BLOCK, STEP=min(STEP, blocks), SAMPLE=keys_M is not None, num_warps=WARPS,
        )  # fmt: skip
        ctx.entries, ctx.kinds = len(table_VE), (table_VE.dtype, bias_V.dtype)
        ctx.save_for_backward(x_ME, table_WE, logits_MW, gold_M, level_M)
        ctx.mark_non_differentiable(sampled_M)
        ctx.set_materialize_grads(False)
        return logits_MW, loss_M, sampled_M

    @staticmethod
    def backward(
        ctx: Any, d_logits_MW: Tensor | None, d_loss_M: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x_ME, table_WE, logits_MW, gold_M, level_M = ctx.saved_tensors
        rows, size = logits_MW.shape
        lines_PW = d_logits_MW
        if d_loss_M is not None:
            steps = triton.cdiv(rows, ROWS * MOST_LINES)
            programs = triton.cdiv(rows, ROWS * steps)
            lines_PW = torch.empty(programs, size, dtype=torch.float32, device=x_ME.device)
            out_MW = torch.empty_like(logits_MW)
            _vocabulary_backward[(programs, triton.cdiv(size, COLUMNS))](
                logits_MW, gold_M, level_M, d_loss_M.contiguous(), out_MW, lines_PW, rows, size, steps,
                R=ROWS, C=COLUMNS, num_warps=WARPS,
            )  # fmt: skip
            if d_logits_MW is not None:
                out_MW += d_logits_MW
                lines_PW = out_MW
            d_logits_MW = out_MW
        if d_logits_MW is None or lines_PW is None:
            return None, None, None, None, None, None
        d_table_VE, d_bias_V = _weights_back(d_logits_MW, x_ME, lines_PW, ctx.entries, ctx.kinds)
        return d_logits_MW @ table_WE, d_table_VE, d_bias_V, None, None, None


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, never: float
    ) -> tuple[Tensor, Tensor]:
        table_WE, bias_W = fill_up(table_VE, bias_V, x_ME.dtype, never=never)
        totals_MK = judge.block_totals(x_ME, table_WE, bias_W)
        rows, blocks = totals_MK.shape
        loss_M, level_M = torch.empty(2, rows, dtype=torch.float32, device=x_ME.device).unbind()
        sampled_M = torch.empty(rows, dtype=torch.long, device=x_ME.device)
        _finish[(rows,)](
            x_ME, table_WE, bias_W, totals_MK, gold_M, gold_M if keys_M is None else keys_M, loss_M, level_M,
            sampled_M, blocks,
            E=x_ME.shape[1], K=triton.next_power_of_2(blocks), T=BLOCK, SAMPLE=keys_M is not None, num_warps=WARPS,
        )  # fmt: skip
        ctx.entries, ctx.kinds = len(table_VE), (table_VE.dtype, bias_V.dtype)
        ctx.save_for_backward(x_ME, table_WE, bias_W, gold_M, level_M)
        ctx.mark_non_differentiable(sampled_M)
        ctx.set_materialize_grads(False)
        return loss_M, sampled_M

    @staticmethod
    def backward(ctx: Any, d_loss_M: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if d_loss_M is None:
            return None, None, None, None, None, None
        x_ME, table_WE, bias_W, gold_M, level_M = ctx.saved_tensors
        given = (x_ME, table_WE, bias_W, gold_M, level_M, d_loss_M.contiguous())
        d_logits_MW, d_x_ME, lines_PW = judge.go_back(*given)
        d_table_VE, d_bias_V = _weights_back(d_logits_MW, x_ME, lines_PW, ctx.entries, ctx.kinds)
        return d_x_ME, d_table_VE, d_bias_V, None, None, None


def _weights_back(
    d_logits_MW: Tensor, x_ME: Tensor, lines_PW: Tensor, entries: int, kinds: tuple[torch.dtype, torch.dtype]
) -> tuple[Tensor, Tensor]:
    """Gradients of the table's and the bias's own entries, in their types."""
    d_bias_V = sum_lines(lines_PW[None, :, :entries], kinds[1])[0]
    return _product(d_logits_MW.t(), x_ME, kinds[0])[:entries], d_bias_V


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    # Only a GPU's products know another type than their factors', and of these only fp32.
    if left.device.type == "cuda" and dtype == torch.float32 and left.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


@torch.compiler.disable
def predict(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, *, never: float,
    logits: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    """(M, W) logits of what was compared with every entry of a table, (M,) losses of the gold entries, and, with keys,
    (M,) entries drawn from the distributions; the logits of what fills up the last 128 are `never`.

    Without `logits` there are none, and where `judge` knows how none are in memory.
    """
    keys_M = None if keys_M is None else keys_M.contiguous()
    given = (x_ME.contiguous(), table_VE, bias_V, gold_M.contiguous(), keys_M, never)
    logits_MW = None
    with torch.cuda.device_of(x_ME):
        if logits or not judge.fits(x_ME):
            logits_MW, loss_M, sampled_M = _Predict.apply(*given)  # type: ignore[no-untyped-call]
        else:
            loss_M, sampled_M = _Judge.apply(*given)  # type: ignore[no-untyped-call]
    # None on every machine alike, also where they were made.
    return logits_MW if logits else None, loss_M, None if keys_M is None else sampled_M
