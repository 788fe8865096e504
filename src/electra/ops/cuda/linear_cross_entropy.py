"""-log softmax(x · tableᵀ + bias)[gold] and a sample, without logits in memory: embeddings of 128, in bf16 on Hopper.

Forward, one kernel multiplies by wgmma and writes only the log-sum-exp of each row and each block of 128 entries. A
Triton kernel then computes loss and sample, for which it makes the logits of the one block drawn again. Backward, one
kernel makes the logits again, writes their gradient and multiplies it with the table. The source is
`linear_cross_entropy.cu`. Reference: `reference/linear_cross_entropy.py`.

Shapes: M rows, E embedding size, V vocabulary, W the same in whole blocks, K blocks, T entries of a block, P rows of
partial sums, J partial sums of x's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.ops import VOCAB_BLOCK, Prediction
from electra.ops.cuda.compiler import TILE_BYTES, Kernel
from electra.ops.cuda.driver import TmaTiles, aligned, launch, multiprocessors
from electra.ops.first_order import first_order_only
from electra.ops.triton.hash import bits, uniform, unsigned
from electra.ops.triton.linear_cross_entropy import WARPS, pad_table, pick, table_gradients

SIZE = 128
"""The embedding size that the kernels know."""
FORWARD_WARPGROUPS, BACKWARD_WARPGROUPS = 4, 3
"""Of a block, 64 rows each."""
_STAGE_BYTES = 2 * TILE_BYTES + 2048
"""A block of entries with their biases."""
FORWARD = Kernel(
    "linear_cross_entropy_forward", "linear_cross_entropy", FORWARD_WARPGROUPS * TILE_BYTES + 4 * _STAGE_BYTES + 128,
    threads=FORWARD_WARPGROUPS * 128 + 32, blocks_per_multiprocessor=1,
)  # fmt: skip
BACKWARD = Kernel(
    "linear_cross_entropy_backward", "linear_cross_entropy",
    BACKWARD_WARPGROUPS * (2 * TILE_BYTES + 4096) + 3 * _STAGE_BYTES + 1024,
    threads=(BACKWARD_WARPGROUPS + 1) * 128, blocks_per_multiprocessor=1,
)  # fmt: skip


@triton.jit
def _finish_kernel(  # type: ignore[no-untyped-def]
    x,  # (M, E)
    table,  # (W, E)
    bias,  # (W,)
    block_lse,  # (M, blocks) fp32
    gold,  # (M,) int64
    keys,  # (M,) int32
    nll, lse,  # (M,) fp32
    sampled,  # (M,) int64
    blocks, E: tl.constexpr, K: tl.constexpr, T: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column_E = tl.arange(0, E)
    blocks_K = tl.arange(0, K)
    x_E = tl.load(x + row * E + column_E).to(tl.float32)
    lse_K = tl.load(block_lse + row * blocks + blocks_K, blocks_K < blocks, float("-inf"))
    top = tl.max(lse_K, 0)
    row_lse = top + tl.log(tl.sum(tl.exp(lse_K - top), 0))
    right = tl.load(gold + row)
    logit = tl.sum(tl.load(table + right * E + column_E).to(tl.float32) * x_E, 0) + tl.load(bias + right).to(tl.float32)
    tl.store(lse + row, row_lse)
    tl.store(nll + row, row_lse - logit)
    if SAMPLE:
        key = unsigned(tl.load(keys + row))
        zero = tl.zeros([], tl.int32)
        block = pick(tl.exp(lse_K - row_lse), blocks_K, uniform(bits(key, zero)))
        entry_T = tl.arange(0, T)
        index_T = block * T + entry_T
        table_TE = tl.load(table + index_T[:, None] * E + column_E[None, :]).to(tl.float32)
        logit_T = tl.sum(table_TE * x_E[None, :], 1) + tl.load(bias + index_T).to(tl.float32)
        entry = pick(tl.exp(logit_T - row_lse), entry_T, uniform(bits(key, zero + 1)))
        tl.store(sampled + row, (block * T + entry).to(tl.int64))


@triton.jit
def _add_parts_kernel(  # type: ignore[no-untyped-def]
    parts,  # (J, padded_rows, N) fp32
    out,  # (M, N)
    rows, padded_rows, items_per_block, blocks, R: tl.constexpr, TILE: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    tile = tl.program_id(0) * R // TILE
    first, last = tile * blocks // items_per_block, ((tile + 1) * blocks - 1) // items_per_block
    offset = row_R[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.zeros([R, N], tl.float32)
    for part in range(last - first + 1):
        total += tl.load(parts + part * padded_rows * N + offset)
    tl.store(out + offset, total.to(out.dtype.element_ty), (row_R < rows)[:, None])


def linear_cross_entropy(
    x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None, *, logits: bool
) -> Prediction:
    assert not logits, "the kernel keeps none"
    keys_M = None if keys_M is None else keys_M.contiguous()
    with torch.cuda.device_of(x_ME):
        nll_M, sampled_M = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_ME.contiguous(), table_VE, bias_V, gold_M.contiguous(), keys_M
        )
    return Prediction(None, nll_M, None if keys_M is None else sampled_M)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, table_VE: Tensor, bias_V: Tensor, gold_M: Tensor, keys_M: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        table_WE, bias_W = pad_table(table_VE, bias_V, x_ME.dtype)
        block_lse_MK = block_log_sum_exp(x_ME, table_WE, bias_W)
        rows, blocks = block_lse_MK.shape
        nll_M, lse_M = torch.empty(2, rows, dtype=torch.float32, device=x_ME.device).unbind()
        sampled_M = torch.empty(rows, dtype=torch.long, device=x_ME.device)
        _finish_kernel[(rows,)](
            x_ME, table_WE, bias_W, block_lse_MK, gold_M, gold_M if keys_M is None else keys_M, nll_M, lse_M,
            sampled_M, blocks,
            E=x_ME.shape[1], K=triton.next_power_of_2(blocks), T=VOCAB_BLOCK, SAMPLE=keys_M is not None,
            num_warps=WARPS,
        )  # fmt: skip
        ctx.entries, ctx.dtypes = len(table_VE), (table_VE.dtype, bias_V.dtype)
        ctx.save_for_backward(x_ME, table_WE, bias_W, gold_M, lse_M)
        ctx.mark_non_differentiable(sampled_M)
        ctx.set_materialize_grads(False)
        return nll_M, sampled_M

    @staticmethod
    @first_order_only
    def backward(ctx: Any, d_nll_M: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if d_nll_M is None:
            return None, None, None, None, None
        x_ME, table_WE, bias_W, gold_M, lse_M = ctx.saved_tensors
        arrays = (x_ME, table_WE, bias_W, gold_M, lse_M, d_nll_M.contiguous())
        d_logits_MW, d_x_ME, sums_PW = logits_backward(*arrays)
        d_table_VE, d_bias_V = table_gradients(d_logits_MW, x_ME, sums_PW, ctx.entries, ctx.dtypes)
        return d_x_ME, d_table_VE, d_bias_V, None, None


def block_log_sum_exp(
    x_ME: Tensor, table_WE: Tensor, bias_W: Tensor, *, warpgroups: int = FORWARD_WARPGROUPS, workers: int | None = None
) -> Tensor:
    """(M, K) the log-sum-exp of each row's logits in each block of entries, by `workers` blocks of threads."""
    rows, blocks = len(x_ME), len(table_WE) // VOCAB_BLOCK
    block_lse_MK = torch.empty(rows, blocks, dtype=torch.float32, device=x_ME.device)
    items, items_per_block = _work(x_ME, blocks, warpgroups, workers)
    tiles = _tiles(x_ME, table_WE, bias_W, warpgroups)
    launch(FORWARD, triton.cdiv(items, items_per_block), *tiles, block_lse_MK, rows, items, items_per_block, blocks)
    return block_lse_MK


def logits_backward(
    x_ME: Tensor, table_WE: Tensor, bias_W: Tensor, gold_M: Tensor, lse_M: Tensor, d_nll_M: Tensor,
    *, warpgroups: int = BACKWARD_WARPGROUPS, workers: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(M, W) the gradient of the logits, (M, E) that of x, and (P, W) partial sums of the bias gradient."""
    rows, blocks, device = len(x_ME), len(table_WE) // VOCAB_BLOCK, x_ME.device
    items, items_per_block = _work(x_ME, blocks, warpgroups, workers)
    padded_rows = items // blocks * warpgroups * 64
    parts = triton.cdiv(blocks, items_per_block) + 1
    d_logits_MW = torch.empty(rows, len(table_WE), dtype=x_ME.dtype, device=device)
    parts_JME = torch.empty(parts, padded_rows, SIZE, dtype=torch.float32, device=device)
    sums_PW = torch.empty(padded_rows // 64, len(table_WE), dtype=torch.float32, device=device)
    launch(
        BACKWARD, triton.cdiv(items, items_per_block), *_tiles(x_ME, table_WE, bias_W, warpgroups),
        TmaTiles(d_logits_MW, 64), gold_M, lse_M, d_nll_M, parts_JME, sums_PW,
        rows, items, items_per_block, blocks, padded_rows,
    )  # fmt: skip
    d_x_ME = torch.empty_like(x_ME)
    _add_parts_kernel[(padded_rows // 2,)](
        parts_JME, d_x_ME, rows, padded_rows, items_per_block, blocks,
        R=2, TILE=warpgroups * 64, N=SIZE, num_warps=1,
    )  # fmt: skip
    return d_logits_MW, d_x_ME, sums_PW


def _work(x_ME: Tensor, blocks: int, warpgroups: int, workers: int | None) -> tuple[int, int]:
    """How many pairs of rows' tiles and blocks of entries there are, and how many of them a block of threads takes."""
    items = triton.cdiv(len(x_ME), warpgroups * 64) * blocks
    return items, triton.cdiv(items, workers or multiprocessors(x_ME.device))


def _tiles(x_ME: Tensor, table_WE: Tensor, bias_W: Tensor, warpgroups: int) -> tuple[TmaTiles, TmaTiles, TmaTiles]:
    return (
        TmaTiles(aligned(x_ME), warpgroups * 64),
        TmaTiles(aligned(table_WE), VOCAB_BLOCK),
        TmaTiles(aligned(bias_W)[None], 1),
    )
