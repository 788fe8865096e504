"""GELU with the exact error function, forward and backward, with the bias gradient's sums.

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
def bell_and_phi(x):  # type: ignore[no-untyped-def]
    """exp(-x²/2) and the normal distribution's cumulative function, to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    bell = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail = tail * bell
    return bell, tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def _gelu_forward(inner, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inner + place, place < count, 0.0).to(tl.float32)
    _, phi = bell_and_phi(x)
    tl.store(out + place, (x * phi).to(out.dtype.element_ty), place < count)


@triton.jit
def _gelu_backward(  # type: ignore[no-untyped-def]
    inner, gradient, sums, tokens, width, steps, R: tl.constexpr, C: tl.constexpr, REPLACE: tl.constexpr
):
    columns_C = tl.program_id(1) * C + tl.arange(0, C)
    bias_RC = tl.zeros([R, C], tl.float32)
    for step in tl.range(steps, num_stages=2):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        inside = (rows_R < tokens)[:, None] & (columns_C < width)[None, :]
        place = rows_R.to(tl.int64)[:, None] * width + columns_C[None, :]
        x = tl.load(inner + place, inside, 0.0).to(tl.float32)
        bell, phi = bell_and_phi(x)
        du = tl.load(gradient + place, inside, 0.0).to(tl.float32) * (phi + x * bell * 0.3989422804014327)
        if REPLACE:
            tl.store(inner + place, (x * phi).to(inner.dtype.element_ty), inside)
        tl.store(gradient + place, du.to(gradient.dtype.element_ty), inside)
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


def gelu_backward(inner_TF: Tensor, gradient_TF: Tensor, sums_PF: Tensor, *, replace: bool) -> None:
    """Overwrite `gradient_TF` with the gradient before the GELU, and `inner_TF` with its output where that is asked.

    `sums_PF` gets, line by line, what adds up to the bias gradient.
    """
    tokens, width = inner_TF.shape
    columns = 128 if width > 256 else 64
    grid = (len(sums_PF), triton.cdiv(width, columns))
    _gelu_backward[grid](
        inner_TF, gradient_TF, sums_PF, tokens, width, _steps(tokens), R=ROWS, C=columns, REPLACE=replace, num_warps=4
    )


def _steps(tokens: int) -> int:
    steps: int = max(1, triton.cdiv(tokens, ROWS * MOST_ROWS))
    return steps
