"""norm(x + dropout(branch)) in one kernel forward and one backward, as an encoder layer runs it between its products.

A program holds whole rows. Backward it loops over rows and leaves one row of partial sums of the gradients of gamma,
beta and the branch's bias. Reference: `reference/add_dropout_norm.py`.

Shapes: T tokens, L length of a sequence, D width, R rows of a program, C the power of two that holds a row, P programs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from electra.ops import NORM_EPS
from electra.ops.triton.hash import Dropout, keep_mask, row_bits

_FORWARD_ELEMENTS = 4096
"""That a program of the forward kernel holds."""
BACKWARD_ELEMENTS, MAX_PROGRAMS = 1024, 1024
"""The same of the backward kernel, one warp a program: sums over rows cost most where warps must share them."""


@triton.jit(do_not_specialize=["address"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    branch,  # (T, D), overwritten with x + dropout(branch)
    x, out,  # (T, D)
    mean, rstd,  # (T,) fp32
    gamma, beta,  # (D,) fp32
    keys,  # (B,) int32
    address, tokens, length, drop_threshold, dropout_scale, eps,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
    offset = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
    z = tl.load(branch + offset, inside, 0.0).to(tl.float32)
    if DROPOUT:
        bits_R = row_bits(tl.load(keys + rows_R // length, rows_R < tokens, 0), address, rows_R % length)
        z = tl.where(keep_mask(bits_R, 0, drop_threshold, C), z * dropout_scale, 0.0)
    z += tl.load(x + offset, inside, 0.0).to(tl.float32)
    mean_R = tl.sum(z, 1) / D
    c = tl.where(inside, z - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(c * c, 1) / D + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < D, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < D, 0.0)
    dtype = out.dtype.element_ty
    tl.store(branch + offset, z.to(dtype), inside)
    tl.store(out + offset, (c * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]).to(dtype), inside)
    tl.store(mean + rows_R, mean_R, rows_R < tokens)
    tl.store(rstd + rows_R, rstd_R, rows_R < tokens)


@triton.jit(do_not_specialize=["address"])
def _backward_kernel(  # type: ignore[no-untyped-def]
    gradient,  # (T, D) of the output
    summed,  # (T, D) x + dropout(branch), overwritten with the gradient of x
    branch,  # (T, D) the branch's gradient
    sums,  # (P, 3·D) fp32 partial sums: gamma, beta, bias
    mean, rstd,  # (T,) fp32
    gamma,  # (D,) fp32
    keys,  # (B,) int32
    address, tokens, length, drop_threshold, dropout_scale, steps,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < D, 0.0)
    d_gamma = tl.zeros([R, C], tl.float32)
    d_beta = tl.zeros([R, C], tl.float32)
    d_bias = tl.zeros([R, C], tl.float32)
    dtype = branch.dtype.element_ty
    for step in tl.range(steps, num_stages=3):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < D)[None, :]
        offset = rows_R.to(tl.int64)[:, None] * D + columns_C[None, :]
        mean_R = tl.load(mean + rows_R, rows_R < tokens, 0.0)
        rstd_R = tl.load(rstd + rows_R, rows_R < tokens, 0.0)
        dy = tl.load(gradient + offset, inside, 0.0).to(tl.float32)
        x = (tl.load(summed + offset, inside, 0.0).to(tl.float32) - mean_R[:, None]) * rstd_R[:, None]
        x = tl.where(inside, x, 0.0)
        d_gamma += dy * x
        d_beta += dy
        dy = dy * gamma_C[None, :]
        mean_dy_R = tl.sum(dy, 1) / D
        mean_dyx_R = tl.sum(dy * x, 1) / D
        dz = (dy - mean_dy_R[:, None] - x * mean_dyx_R[:, None]) * rstd_R[:, None]
        tl.store(summed + offset, dz.to(dtype), inside)
        if DROPOUT:
            bits_R = row_bits(tl.load(keys + rows_R // length, rows_R < tokens, 0), address, rows_R % length)
            dz = tl.where(keep_mask(bits_R, 0, drop_threshold, C), dz * dropout_scale, 0.0)
        tl.store(branch + offset, dz.to(dtype), inside)
        d_bias += tl.where(inside, dz, 0.0)
    row = sums + tl.program_id(0).to(tl.int64) * 3 * D + columns_C
    tl.store(row, tl.sum(d_gamma, 0), columns_C < D)
    tl.store(row + D, tl.sum(d_beta, 0), columns_C < D)
    tl.store(row + 2 * D, tl.sum(d_bias, 0), columns_C < D)


def add_dropout_norm_forward(
    branch_TD: Tensor, x_TD: Tensor, gamma_D: Tensor, beta_D: Tensor, dropout: Dropout,
    *, length: int, out: Tensor, mean: Tensor, rstd: Tensor,
) -> None:  # fmt: skip
    """Fill `out` with norm(x + dropout(branch)), and `mean` and `rstd` with the statistics of its (T,) rows.

    `branch_TD` is overwritten with the sum under the norm, which the backward needs.
    """
    tokens, width = branch_TD.shape
    rows, block = tile(width, _FORWARD_ELEMENTS)
    keys = branch_TD if dropout.keys_B is None else dropout.keys_B
    _forward_kernel[(triton.cdiv(tokens, rows),)](
        branch_TD, x_TD, out, mean, rstd, gamma_D, beta_D, keys, dropout.address, tokens, length,
        dropout.threshold, dropout.scale, NORM_EPS,
        D=width, C=block, R=rows, DROPOUT=dropout.keys_B is not None, num_warps=4,
    )  # fmt: skip


def norm_rows(sequences: int, tokens: int, width: int, *, max_programs: int = MAX_PROGRAMS) -> int:
    """How many rows of partial sums `add_dropout_norm_backward` writes: at most one a program."""
    rows, _ = tile(width, BACKWARD_ELEMENTS)
    return -(-tokens // (rows * max(1, -(-tokens // (rows * max_programs)))))


def add_dropout_norm_backward(
    gradient_TD: Tensor, summed_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, gamma_D: Tensor, dropout: Dropout,
    *, length: int, d_branch: Tensor, sums: Tensor,
) -> None:  # fmt: skip
    """Overwrite `summed_TD` with the gradient of x, and fill `d_branch` with the branch's.

    (P, 3·D) `sums` get partial sums of the gradients of gamma, beta, and the bias of the branch: `norm_rows` says how
    many rows, or fewer.
    """
    tokens, width = summed_TD.shape
    rows, block = tile(width, BACKWARD_ELEMENTS)
    keys = summed_TD if dropout.keys_B is None else dropout.keys_B
    _backward_kernel[(len(sums),)](
        gradient_TD, summed_TD, d_branch, sums, mean_T, rstd_T, gamma_D, keys, dropout.address, tokens, length,
        dropout.threshold, dropout.scale, triton.cdiv(tokens, rows * len(sums)),
        D=width, C=block, R=rows, DROPOUT=dropout.keys_B is not None, num_warps=1,
    )  # fmt: skip


def tile(width: int, elements: int) -> tuple[int, int]:
    """Rows of a program that holds so many elements, and the power of two that holds a row."""
    block = triton.next_power_of_2(width)
    return max(1, elements // block), block
