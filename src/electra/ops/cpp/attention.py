"""Attention with dropout: two batched products, and one pass over the scores between them, forward and backward.

The softmax is taken in fp32 of scores that were scaled and masked in fp32. Dropped probabilities are saved with a minus
sign, so that the backward needs no mask.

Shapes: B sequences, L length, D width, N heads, H head size, X = B·N.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.ops.cpp.batched_matmul import batched_matmul
from electra.ops.cpp.dropout import Dropout, dropout_of
from electra.ops.cpp.library import call
from electra.ops.reference.attention import attention as reference_attention


def attention(
    x_BLD: Tensor,
    weight_3DD: Tensor,
    bias_3D: Tensor,
    *,
    heads: int,
    mask_B1LL: Tensor | None,
    rate: float,
    keys_B: Tensor | None,
    rotation_2LH: Tensor | None = None,
) -> Tensor:
    drop = dropout_of(keys_B, rate, x_BLD.shape[1])
    if drop.keys_B is None or rotation_2LH is not None:  # without dropout torch's fused attention is as fast
        return reference_attention(
            x_BLD,
            weight_3DD,
            bias_3D,
            heads=heads,
            mask_B1LL=mask_B1LL,
            rate=rate,
            keys_B=keys_B,
            rotation_2LH=rotation_2LH,
        )
    product_BLD = F.linear(x_BLD, weight_3DD)
    mixed_BLD: Tensor = _Attention.apply(product_BLD, bias_3D, mask_B1LL, drop, heads)  # type: ignore[no-untyped-call]
    return mixed_BLD


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, product_BLD: Tensor, bias_3D: Tensor, mask_B1LL: Tensor | None, drop: Dropout, heads: int
    ) -> Tensor:
        assert product_BLD.dtype == bias_3D.dtype
        qkv_3XLH = _split_heads(product_BLD.contiguous(), bias_3D.contiguous(), parts=3, heads=heads)
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        probabilities_XLL = batched_matmul(q_XLH, k_XLH.transpose(1, 2))
        saved_XLL = torch.empty_like(probabilities_XLL)
        sequences, length = product_BLD.shape[:2]
        mask, sequence_stride, row_stride = contiguous_mask(mask_B1LL, saved_XLL.dtype, sequences, length)
        scale = q_XLH.shape[-1] ** -0.5
        call(
            "softmax_dropout", saved_XLL.dtype, probabilities_XLL, saved_XLL, mask, sequence_stride, row_stride, *drop,
            scale, sequences, heads, length,
        )  # fmt: skip
        ctx.save_for_backward(qkv_3XLH, saved_XLL)
        ctx.dropout_scale, ctx.scale, ctx.heads = drop.scale, scale, heads
        return _merge_heads(batched_matmul(probabilities_XLL, v_XLH)[None], sequences=sequences, heads=heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_3XLH, saved_XLL = ctx.saved_tensors
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        (d_mixed_XLH,) = _split_heads(gradient_BLD.contiguous(), None, parts=1, heads=ctx.heads)
        d_scores_XLL = batched_matmul(d_mixed_XLH, v_XLH.transpose(1, 2))
        probabilities_XLL = torch.empty_like(saved_XLL)
        rows, length = saved_XLL.shape[0] * saved_XLL.shape[1], saved_XLL.shape[2]
        arguments = (d_scores_XLL, saved_XLL, probabilities_XLL, ctx.dropout_scale, ctx.scale, rows, length)
        call("softmax_dropout_backward", saved_XLL.dtype, *arguments)
        d_qkv_3XLH = torch.empty_like(qkv_3XLH)
        batched_matmul(d_scores_XLL, k_XLH, out=d_qkv_3XLH[0])
        batched_matmul(d_scores_XLL.transpose(1, 2), q_XLH, out=d_qkv_3XLH[1])
        batched_matmul(probabilities_XLL.transpose(1, 2), d_mixed_XLH, out=d_qkv_3XLH[2])
        d_bias_3D = saved_XLL.new_empty(3 * gradient_BLD.shape[-1])
        d_product_BLD = _merge_heads(d_qkv_3XLH, sequences=len(gradient_BLD), heads=ctx.heads, sums_D=d_bias_3D)
        return d_product_BLD, d_bias_3D, None, None, None


def _split_heads(x_BLD: Tensor, bias_D: Tensor | None, *, parts: int, heads: int) -> Tensor:
    """(parts, X, L, H) the heads of each part, after a bias was added."""
    sequences, length, width = x_BLD.shape
    size = width // (parts * heads)
    y = x_BLD.new_empty(parts, sequences * heads, length, size)
    call("split_heads", x_BLD.dtype, x_BLD, bias_D, y, parts, sequences, heads, length, size)
    return y


def _merge_heads(x_PXLH: Tensor, *, sequences: int, heads: int, sums_D: Tensor | None = None) -> Tensor:
    """(B, L, D) the heads of each part side by side again; `sums_D` gets the sums over all tokens."""
    parts, _, length, size = x_PXLH.shape
    y_BLD = x_PXLH.new_empty(sequences, length, parts * heads * size)
    call("merge_heads", x_PXLH.dtype, x_PXLH, y_BLD, sums_D, parts, sequences, heads, length, size)
    return y_BLD


def contiguous_mask(
    mask_B1LL: Tensor | None, dtype: torch.dtype, sequences: int, length: int
) -> tuple[Tensor | None, int, int]:
    """The mask with the strides of its sequences and rows: 0 where there is one for all."""
    if mask_B1LL is None:
        return None, 0, 0
    mask = mask_B1LL.to(dtype).expand(-1, -1, -1, length).contiguous()
    sequence_stride, _, row_stride, _ = mask.expand(sequences, 1, length, length).stride()
    return mask, sequence_stride, row_stride
