"""Attention over at most 128 tokens and heads of 64, in bf16, by TMA and wgmma: a block does one head at a time.

The sources are `attention_forward.cu` and `attention_backward.cu`. The log-sum-exp is in base 2.
Reference: `reference/attention.py`, between its two products.

Shapes: B sequences, T = B·L tokens, N heads, W = 3·N·64.
"""

from __future__ import annotations

from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops.cuda.compiler import HEAD_SIZE, MAX_LENGTH, TILE_BYTES, Kernel
from electra.ops.cuda.driver import MULTIPROCESSORS, Argument, TmaTiles, launch
from electra.ops.triton.hash import Dropout

FORWARD = Kernel("attention_forward", "attention_forward", 6 * TILE_BYTES + 256 + 16)
BACKWARD = Kernel("attention_backward", "attention_backward", 12 * TILE_BYTES + 4096 + 16, blocks_per_multiprocessor=1)


def attention_forward(
    qkv_TW: Tensor, lengths_B: Tensor | None, spans: Spans | None, dropout: Dropout,
    *, length: int, heads: int, out: Tensor, lse: Tensor, multiprocessors: int = MULTIPROCESSORS,
) -> None:  # fmt: skip
    """Fill `out` (T, N·64) with the context of every head, and `lse` with each row's log-sum-exp."""
    assert spans is None and length <= MAX_LENGTH
    programs = len(qkv_TW) // length * heads
    launch(
        FORWARD, min(programs, FORWARD.blocks_per_multiprocessor * multiprocessors),
        TmaTiles(qkv_TW, MAX_LENGTH, length), TmaTiles(out, MAX_LENGTH // 2, length), lse,
        *_numeric_arguments(lengths_B, dropout, programs, length, heads),
    )  # fmt: skip


def attention_backward(
    qkv_TW: Tensor, gradient_TD: Tensor, context_TD: Tensor, lse_TN: Tensor, lengths_B: Tensor | None,
    spans: Spans | None, dropout: Dropout, *, length: int, heads: int, sums: Tensor,
    multiprocessors: int = MULTIPROCESSORS,
) -> None:  # fmt: skip
    """Overwrite `qkv_TW` with its gradient, and `sums` (B, W) with that gradient's sums over each sequence."""
    assert spans is None and length <= MAX_LENGTH
    programs = len(qkv_TW) // length * heads
    launch(
        BACKWARD, min(programs, BACKWARD.blocks_per_multiprocessor * multiprocessors),
        TmaTiles(qkv_TW, MAX_LENGTH, length), TmaTiles(gradient_TD, MAX_LENGTH, length), lse_TN, sums,
        *_numeric_arguments(lengths_B, dropout, programs, length, heads),
    )  # fmt: skip


def _numeric_arguments(
    lengths_B: Tensor | None, dropout: Dropout, programs: int, length: int, heads: int
) -> tuple[Argument, ...]:
    """What both kernels take after their arrays."""
    scale = HEAD_SIZE**-0.5
    return lengths_B, dropout.keys_B, dropout.address, programs, length, heads, scale, dropout.threshold, dropout.scale
