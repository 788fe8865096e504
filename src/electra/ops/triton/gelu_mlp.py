"""gelu(x · weightᵀ + bias), the first half of an MLP, and its backward: library products and a pass over memory each.

The GELU is that with the error function, to 1e-7 in fp32. Where the result is rounded to 16 bits it is a polynomial,
exact to a part of that rounding: an exponential and a division cost more than reading and writing the number.
Reference: `reference/linear_gelu.py`.

Shapes: T tokens, D width, F inner width, R rows of a program, P rows of partial sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_ROWS, MAX_PARTIAL_ROWS = 32, 128


@triton.jit
def _bell_and_phi(x):  # type: ignore[no-untyped-def]
    """exp(-x²/2) and the normal distribution's cumulative function, to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    bell = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = tail * bell
    return bell, tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def _clamped(x):  # type: ignore[no-untyped-def]
    """x where the polynomials below hold: further out both functions are as good as flat."""
    return tl.minimum(tl.maximum(x, -4.25), 4.25)


@triton.jit
def _phi_16(x):  # type: ignore[no-untyped-def]
    """The normal distribution's cumulative function to 2e-5, without an exponential."""
    c = _clamped(x)
    s = c * c
    a = 4.76076019e-11 * s - 4.69411265e-09
    a = a * s + 2.04881886e-07
    a = a * s - 5.26668873e-06
    a = a * s + 8.98211219e-05
    a = a * s - 0.00108791597
    a = a * s + 0.00975214504
    a = a * s - 0.0662540495
    a = a * s + 0.398864508
    return c * a + 0.5


@triton.jit
def _derivative_16(x):  # type: ignore[no-untyped-def]
    """The GELU's derivative to 2e-4."""
    c = _clamped(x)
    s = c * c
    a = 3.55245433e-09 - 3.42676061e-11 * s
    a = a * s - 1.6349081e-07
    a = a * s + 4.43265799e-06
    a = a * s - 7.93626823e-05
    a = a * s + 0.000996547053
    a = a * s - 0.0090404544
    a = a * s + 0.0590925328
    a = a * s - 0.265392601
    a = a * s + 0.797756433
    return c * a + 0.5


@triton.jit
def gelu(x, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The GELU of fp32 numbers that are read and written in `DTYPE`."""
    if DTYPE.is_fp32():
        _, phi = _bell_and_phi(x)
    else:
        phi = _phi_16(x)
    return x * phi


@triton.jit
def gelu_derivative(x, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    if DTYPE.is_fp32():
        bell, phi = _bell_and_phi(x)
        derivative = phi + x * bell * 0.3989422804014327
    else:
        derivative = _derivative_16(x)
    return derivative


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    preact, act,  # (count,)
    count, BLOCK: tl.constexpr,
):  # fmt: skip
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(preact + offset, offset < count, 0.0).to(tl.float32)
    dtype: tl.constexpr = act.dtype.element_ty
    tl.store(act + offset, gelu(x, dtype).to(dtype), offset < count)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    preact,  # (T, F)
    gradient,  # (T, F) of the output, overwritten with that of `preact`
    sums,  # (P, F) fp32 partial sums of the bias gradient
    tokens, width, steps, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    columns_C = tl.program_id(1) * C + tl.arange(0, C)
    bias_RC = tl.zeros([R, C], tl.float32)
    dtype: tl.constexpr = preact.dtype.element_ty
    for step in tl.range(steps, num_stages=2):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < width)[None, :]
        offset = rows_R.to(tl.int64)[:, None] * width + columns_C[None, :]
        x = tl.load(preact + offset, inside, 0.0).to(tl.float32)
        du = tl.load(gradient + offset, inside, 0.0).to(tl.float32) * gelu_derivative(x, dtype)
        tl.store(gradient + offset, du.to(dtype), inside)
        bias_RC += du
    row = sums + tl.program_id(0).to(tl.int64) * width
    tl.store(row + columns_C, tl.sum(bias_RC, 0), columns_C < width)


def linear_gelu_forward(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor, *, preact: Tensor, act: Tensor) -> None:
    """Fill `preact` (T, F) with x · weightᵀ + bias, and `act` with its GELU."""
    torch.addmm(bias_F, x_TD, weight_FD.t(), out=preact)
    count = preact.numel()
    _forward_kernel[(triton.cdiv(count, _BLOCK),)](preact, act, count, BLOCK=_BLOCK, num_warps=4)


def gelu_rows(sequences: int, tokens: int, ffn: int, *, max_rows: int = MAX_PARTIAL_ROWS) -> int:
    """How many rows of partial sums `linear_gelu_backward` writes."""
    return -(-tokens // (_ROWS * max(1, -(-tokens // (_ROWS * max_rows)))))


def linear_gelu_backward(
    gradient_TD: Tensor, down_DF: Tensor, preact_TF: Tensor, *, d_preact: Tensor, sums: Tensor
) -> None:
    """Fill `d_preact` (T, F) with (gradient · down) · gelu'(preact), where `gradient_TD` is that of act · downᵀ.

    (P, F) `sums` get partial sums of the bias gradient: `gelu_rows` says how many rows, or fewer.
    """
    torch.mm(gradient_TD, down_DF, out=d_preact)
    tokens, width = preact_TF.shape
    columns = 128 if width > 256 else 64
    steps = triton.cdiv(tokens, _ROWS * len(sums))
    grid = (len(sums), triton.cdiv(width, columns))
    _backward_kernel[grid](preact_TF, d_preact, sums, tokens, width, steps, R=_ROWS, C=columns, num_warps=4)
