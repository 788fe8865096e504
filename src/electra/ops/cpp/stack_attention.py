"""Attention inside `encoder_stack`, forward and backward: head by head on AMX, or by batched products of all heads.

The softmax is taken in fp32 of scores that were scaled and masked in fp32. Dropped probabilities are saved with a minus
sign, so that the backward needs no mask.

Shapes: B sequences, L length, T = B·L tokens, D width, W = 3·D, N heads, H head size, X = B·N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from electra.ops.cpp import library
from electra.ops.cpp.batched_matmul import batched_matmul
from electra.ops.cpp.dropout import Dropout
from electra.ops.cpp.library import AMX_BLOCK, call


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """Mask and sizes, the same in all layers of a stack."""

    mask: tuple[Tensor | None, int, int]
    """Added to the scores, with the strides of its sequences and rows; contiguous rows."""
    sequences: int
    length: int
    heads: int
    head_size: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.sequences, self.heads, self.length, self.head_size

    @property
    def matrices(self) -> int:
        return self.sequences * self.heads

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_size)


class Attended(NamedTuple):
    """The output of attention before its projection, and what the backward reads beside it."""

    context_TD: Tensor
    qkv: Tensor
    """Queries, keys and values: (T, W) without bias on AMX, (3, X, L, H) with it otherwise."""
    probabilities_XLL: Tensor
    """Before dropout, negative where dropped."""


class Attention(Protocol):
    """Attention of one layer after another, in buffers that the next call overwrites."""

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended: ...

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        """The gradient of x · weightᵀ, in a buffer that the next call overwrites; fills that of the bias."""


def make_attention(like_TD: Tensor, inputs: AttentionInputs) -> Attention:
    amx = like_TD.dtype == torch.bfloat16 and inputs.head_size % AMX_BLOCK == 0 and library.has_amx()
    return HeadByHead(inputs) if amx else BatchedProducts(like_TD, inputs)


class HeadByHead:
    """On AMX, a head at a time from its queries, keys and values to its context; scores stay in the cache."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self._inputs = inputs
        self._d_qkv_TW: Tensor | None = None

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended:
        inputs, qkv_TW = self._inputs, torch.mm(x_TD, weight_WD.t())
        context_TD = torch.empty_like(x_TD)
        probabilities_XLL = x_TD.new_empty(inputs.matrices, inputs.length, inputs.length)
        arguments = (qkv_TW, bias_W, probabilities_XLL, context_TD, *inputs.mask, *dropout, inputs.scale)
        call("attention", x_TD.dtype, *arguments, *inputs.sizes)
        return Attended(context_TD, qkv_TW, probabilities_XLL)

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        if self._d_qkv_TW is None:
            self._d_qkv_TW = torch.empty_like(saved.qkv)
        arguments = (d_context_TD, saved.qkv, bias_W, saved.probabilities_XLL, self._d_qkv_TW, d_bias_W, dropout.scale)
        call("attention_backward", d_context_TD.dtype, *arguments, self._inputs.scale, *self._inputs.sizes)
        return self._d_qkv_TW


class BatchedProducts:
    """Two products of all heads, and one pass over the scores between them."""

    def __init__(self, like_TD: Tensor, inputs: AttentionInputs) -> None:
        new, matrices, length, size = like_TD.new_empty, inputs.matrices, inputs.length, inputs.head_size
        self._inputs = inputs
        self._product_TW = new(len(like_TD), 3 * like_TD.shape[1])
        self._scores_XLL = new(matrices, length, length)
        self._context_XLH = new(matrices, length, size)
        self._of_backward: tuple[Tensor, Tensor] | None = None

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended:
        inputs, dtype, scores_XLL = self._inputs, x_TD.dtype, self._scores_XLL
        torch.mm(x_TD, weight_WD.t(), out=self._product_TW)
        qkv_3XLH = x_TD.new_empty(3, *self._context_XLH.shape)
        call("split_heads", dtype, self._product_TW, bias_W, qkv_3XLH, 3, *inputs.sizes)
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        batched_matmul(q_XLH, k_XLH.transpose(1, 2), out=scores_XLL)
        probabilities_XLL = torch.empty_like(scores_XLL)
        arguments = (scores_XLL, probabilities_XLL, *inputs.mask, *dropout, inputs.scale)
        call("softmax_dropout", dtype, *arguments, inputs.sequences, inputs.heads, inputs.length)
        batched_matmul(scores_XLL, v_XLH, out=self._context_XLH)
        context_TD = torch.empty_like(x_TD)
        call("merge_heads", dtype, self._context_XLH, context_TD, None, 1, *inputs.sizes)
        return Attended(context_TD, qkv_3XLH, probabilities_XLL)

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        inputs, dtype, d_scores_XLL = self._inputs, d_context_TD.dtype, self._scores_XLL
        if self._of_backward is None:
            self._of_backward = torch.empty_like(d_scores_XLL), torch.empty_like(saved.qkv)
        dropped_XLL, d_qkv_3XLH = self._of_backward
        q_XLH, k_XLH, v_XLH = saved.qkv
        call("split_heads", dtype, d_context_TD, None, self._context_XLH, 1, *inputs.sizes)
        batched_matmul(self._context_XLH, v_XLH.transpose(1, 2), out=d_scores_XLL)
        arguments = (d_scores_XLL, saved.probabilities_XLL, dropped_XLL, dropout.scale, inputs.scale)
        call("softmax_dropout_backward", dtype, *arguments, inputs.matrices * inputs.length, inputs.length)
        batched_matmul(d_scores_XLL, k_XLH, out=d_qkv_3XLH[0])
        batched_matmul(d_scores_XLL.transpose(1, 2), q_XLH, out=d_qkv_3XLH[1])
        batched_matmul(dropped_XLL.transpose(1, 2), self._context_XLH, out=d_qkv_3XLH[2])
        call("merge_heads", dtype, d_qkv_3XLH, self._product_TW, d_bias_W, 3, *inputs.sizes)
        return self._product_TW
