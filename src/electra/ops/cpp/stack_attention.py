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
from electra.ops.cpp.library import call

AMX_HEADS = 32
"""Head sizes on AMX are multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What all layers of a stack have in common."""

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
    """Either way, with buffers that the next layer overwrites."""

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended: ...

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        """The gradient of x · weightᵀ; fills that of the bias."""


def make_attention(like_TD: Tensor, shape: AttentionShape) -> Attention:
    amx = like_TD.dtype == torch.bfloat16 and shape.head_size % AMX_HEADS == 0 and library.has_amx()
    return HeadByHead(shape) if amx else ByProducts(like_TD, shape)


class HeadByHead:
    """A head at a time from its queries, keys and values to its context; scores stay in the cache."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._d_qkv_TW: Tensor | None = None

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended:
        shape, qkv_TW = self._shape, torch.mm(x_TD, weight_WD.t())
        context_TD = torch.empty_like(x_TD)
        probabilities_XLL = x_TD.new_empty(shape.matrices, shape.length, shape.length)
        arguments = (qkv_TW, bias_W, probabilities_XLL, context_TD, *shape.mask, *dropout, shape.scale)
        call("attention", x_TD.dtype, *arguments, *shape.sizes)
        return Attended(context_TD, qkv_TW, probabilities_XLL)

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        if self._d_qkv_TW is None:
            self._d_qkv_TW = torch.empty_like(saved.qkv)
        arguments = (d_context_TD, saved.qkv, bias_W, saved.probabilities_XLL, self._d_qkv_TW, d_bias_W, dropout.scale)
        call("attention_backward", d_context_TD.dtype, *arguments, self._shape.scale, *self._shape.sizes)
        return self._d_qkv_TW


class ByProducts:
    """Two batched products, and one pass over the scores between them."""

    def __init__(self, like_TD: Tensor, shape: AttentionShape) -> None:
        new, matrices, length, size = like_TD.new_empty, shape.matrices, shape.length, shape.head_size
        self._shape = shape
        self._product_TW = new(len(like_TD), 3 * like_TD.shape[1])
        self._scores_XLL = new(matrices, length, length)
        self._dropped_XLL = new(matrices, length, length)
        self._context_XLH = new(matrices, length, size)
        self._d_qkv_3XLH = new(3, matrices, length, size)

    def forward(self, x_TD: Tensor, weight_WD: Tensor, bias_W: Tensor, dropout: Dropout) -> Attended:
        shape, dtype, scores_XLL = self._shape, x_TD.dtype, self._scores_XLL
        torch.mm(x_TD, weight_WD.t(), out=self._product_TW)
        qkv_3XLH = torch.empty_like(self._d_qkv_3XLH)
        call("split_heads", dtype, self._product_TW, bias_W, qkv_3XLH, 3, *shape.sizes)
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        batched_matmul(q_XLH, k_XLH.transpose(1, 2), out=scores_XLL)
        probabilities_XLL = torch.empty_like(scores_XLL)
        arguments = (scores_XLL, probabilities_XLL, *shape.mask, *dropout, shape.scale)
        call("softmax_dropout", dtype, *arguments, shape.sequences, shape.heads, shape.length)
        batched_matmul(scores_XLL, v_XLH, out=self._context_XLH)
        context_TD = torch.empty_like(x_TD)
        call("merge_heads", dtype, self._context_XLH, context_TD, None, 1, *shape.sizes)
        return Attended(context_TD, qkv_3XLH, probabilities_XLL)

    def backward(
        self, d_context_TD: Tensor, saved: Attended, bias_W: Tensor, dropout: Dropout, *, d_bias_W: Tensor
    ) -> Tensor:
        shape, dtype, d_scores_XLL = self._shape, d_context_TD.dtype, self._scores_XLL
        q_XLH, k_XLH, v_XLH = saved.qkv
        call("split_heads", dtype, d_context_TD, None, self._context_XLH, 1, *shape.sizes)
        batched_matmul(self._context_XLH, v_XLH.transpose(1, 2), out=d_scores_XLL)
        arguments = (d_scores_XLL, saved.probabilities_XLL, self._dropped_XLL, dropout.scale, shape.scale)
        call("softmax_dropout_backward", dtype, *arguments, shape.matrices * shape.length, shape.length)
        d_q_XLH, d_k_XLH, d_v_XLH = self._d_qkv_3XLH
        batched_matmul(d_scores_XLL, k_XLH, out=d_q_XLH)
        batched_matmul(d_scores_XLL.transpose(1, 2), q_XLH, out=d_k_XLH)
        batched_matmul(self._dropped_XLL.transpose(1, 2), self._context_XLH, out=d_v_XLH)
        call("merge_heads", dtype, self._d_qkv_3XLH, self._product_TW, d_bias_W, 3, *shape.sizes)
        return self._product_TW
