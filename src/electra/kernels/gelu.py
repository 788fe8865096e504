"""GELU with the error function, forward and backward, with the bias gradient's sums.

To 1e-7 in fp32. What is rounded to 16 bits anyway gets polynomials, exact to a part of that rounding: an exponential
and a division cost more than reading and writing the number.

Shapes: T tokens, F inner width, R rows of a program, P rows of programs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
ROWS = 32
MOST_ROWS = 128


@triton.jit
def _bell_and_phi(x):  # type: ignore[no-untyped-def]
    """exp(-x²/2) and the normal distribution's cumulative function, to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    bell = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = tail * bell
    return bell, tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def _between(x):  # type: ignore[no-untyped-def]
    """x kept where the polynomials below hold: further out both functions are as good as flat."""
    return tl.minimum(tl.maximum(x, -4.25), 4.25)


@triton.jit
def _phi_16(x):  # type: ignore[no-untyped-def]
    """The normal distribution's cumulative function to 2e-5: for what is rounded to 16 bits, without an exponential."""
    c = _between(x)
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
def _slope_16(x):  # type: ignore[no-untyped-def]
    """The GELU's derivative to 2e-4."""
    c = _between(x)
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
def gelu_of(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The GELU of fp32 numbers that come from and go to numbers of a kind."""
    if KIND.is_fp32():
        _, phi = _bell_and_phi(x)
    else:
        phi = _phi_16(x)
    return x * phi


@triton.jit
def slope_of(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Its derivative."""
    if KIND.is_fp32():
        bell, phi = _bell_and_phi(x)
        slope = phi + x * bell * 0.3989422804014327
    else:
        slope = _slope_16(x)
    return slope


@triton.jit
def _gelu_forward(inner, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inner + place, place < count, 0.0).to(tl.float32)
    kind: tl.constexpr = out.dtype.element_ty
    tl.store(out + place, gelu_of(x, kind).to(kind), place < count)


@triton.jit
def _gelu_backward(  # type: ignore[no-untyped-def]
    inner, gradient, sums, tokens, width, steps, R: tl.constexpr, C: tl.constexpr
):
    columns_C = tl.program_id(1) * C + tl.arange(0, C)
    bias_RC = tl.zeros([R, C], tl.float32)
    kind: tl.constexpr = inner.dtype.element_ty
    for step in tl.range(steps, num_stages=2):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < width)[None, :]
        place = rows_R.to(tl.int64)[:, None] * width + columns_C[None, :]
        x = tl.load(inner + place, inside, 0.0).to(tl.float32)
        du = tl.load(gradient + place, inside, 0.0).to(tl.float32) * slope_of(x, kind)
        tl.store(gradient + place, du.to(kind), inside)
        bias_RC += du
    line = sums + tl.program_id(0).to(tl.int64) * width
    tl.store(line + columns_C, tl.sum(bias_RC, 0), columns_C < width)


def gelu(inner_TF: Tensor, *, out: Tensor) -> None:
    count = inner_TF.numel()
    _gelu_forward[(triton.cdiv(count, BLOCK),)](inner_TF, out, count, BLOCK=BLOCK, num_warps=4)


def programs(tokens: int) -> int:
    """How many lines of sums `gelu_backward` writes."""
    lines: int = triton.cdiv(tokens, ROWS * _steps(tokens))
    return lines


def gelu_backward(inner_TF: Tensor, gradient_TF: Tensor, sums_PF: Tensor) -> None:
    """Overwrite `gradient_TF` with the gradient before the GELU, which was given `inner_TF`.

    `sums_PF` gets, line by line, what adds up to the bias gradient.
    """
    tokens, width = inner_TF.shape
    columns = 128 if width > 256 else 64
    grid = (len(sums_PF), triton.cdiv(width, columns))
    _gelu_backward[grid](inner_TF, gradient_TF, sums_PF, tokens, width, _steps(tokens), R=ROWS, C=columns, num_warps=4)


def _steps(tokens: int) -> int:
    steps: int = max(1, triton.cdiv(tokens, ROWS * MOST_ROWS))
    return steps
