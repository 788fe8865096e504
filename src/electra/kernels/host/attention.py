"""Attention with dropout on a CPU: two batched products, and one pass each way over the scores between them.

Its plain twin is in `model.layers`. The softmax is taken in fp32 of scores that were scaled and biased in fp32.

Shapes: B texts, L length, D width, N heads, H head size, X = B·N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from electra.kernels.host.dropout import Chance, words
from electra.kernels.host.library import call
from electra.kernels.host.product import multiply


def attend(product_BLD: Tensor, bias_D: Tensor, hidden_B1LL: Tensor | None, chance: Chance, *, heads: int) -> Tensor:
    """(B, L, D) what the heads mix, from a product and its bias that hold queries, keys and values side by side.

    `hidden_B1LL` is added to the scores, and may be one for all texts or rows.
    """
    mixed_BLD: Tensor = _Attend.apply(product_BLD, bias_D, hidden_B1LL, chance, heads)  # type: ignore[no-untyped-call]
    return mixed_BLD


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, product_BLD: Tensor, bias_D: Tensor, hidden_B1LL: Tensor | None, chance: Chance, heads: int
    ) -> Tensor:
        assert product_BLD.dtype == bias_D.dtype
        qkv_3XLH = _split(product_BLD.contiguous(), bias_D.contiguous(), parts=3, heads=heads)
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        shares_XLL = multiply(q_XLH, k_XLH.transpose(1, 2))
        kept_XLL = torch.empty_like(shares_XLL)
        texts, length = product_BLD.shape[:2]
        bias, of_text, of_row = _laid_out(hidden_B1LL, kept_XLL.dtype, texts, length)
        scale = q_XLH.shape[-1] ** -0.5
        call(
            "share", kept_XLL.dtype, shares_XLL, kept_XLL, bias, of_text, of_row, *words(chance), scale,
            texts, heads, length,
        )  # fmt: skip
        ctx.save_for_backward(qkv_3XLH, kept_XLL)
        ctx.grow, ctx.scale, ctx.heads = chance.grow, scale, heads
        return _join(multiply(shares_XLL, v_XLH)[None], texts=texts, heads=heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor | None, ...]:
        qkv_3XLH, kept_XLL = ctx.saved_tensors
        q_XLH, k_XLH, v_XLH = qkv_3XLH
        (d_mixed_XLH,) = _split(gradient_BLD.contiguous(), None, parts=1, heads=ctx.heads)
        d_scores_XLL = multiply(d_mixed_XLH, v_XLH.transpose(1, 2))
        shares_XLL = torch.empty_like(kept_XLL)
        lines, length = kept_XLL.shape[0] * kept_XLL.shape[1], kept_XLL.shape[2]
        call("share_back", kept_XLL.dtype, d_scores_XLL, kept_XLL, shares_XLL, ctx.grow, ctx.scale, lines, length)
        found_3XLH = torch.empty_like(qkv_3XLH)
        multiply(d_scores_XLL, k_XLH, out=found_3XLH[0])
        multiply(d_scores_XLL.transpose(1, 2), q_XLH, out=found_3XLH[1])
        multiply(shares_XLL.transpose(1, 2), d_mixed_XLH, out=found_3XLH[2])
        d_bias_D = kept_XLL.new_empty(3 * gradient_BLD.shape[-1])
        d_product_BLD = _join(found_3XLH, texts=len(gradient_BLD), heads=ctx.heads, sums_D=d_bias_D)
        return d_product_BLD, d_bias_D, None, None, None


def _split(x_BLD: Tensor, bias_D: Tensor | None, *, parts: int, heads: int) -> Tensor:
    """(parts, X, L, H) the heads of each part, after a bias was added."""
    texts, length, width = x_BLD.shape
    size = width // (parts * heads)
    y = x_BLD.new_empty(parts, texts * heads, length, size)
    call("split", x_BLD.dtype, x_BLD, bias_D, y, parts, texts, heads, length, size)
    return y


def _join(x_PXLH: Tensor, *, texts: int, heads: int, sums_D: Tensor | None = None) -> Tensor:
    """(B, L, D) the heads of each part side by side again; `sums_D` gets the sums over all tokens."""
    parts, _, length, size = x_PXLH.shape
    y_BLD = x_PXLH.new_empty(texts, length, parts * heads * size)
    call("join", x_PXLH.dtype, x_PXLH, y_BLD, sums_D, parts, texts, heads, length, size)
    return y_BLD


def _laid_out(hidden_B1LL: Tensor | None, kind: torch.dtype, texts: int, length: int) -> tuple[Tensor | None, int, int]:
    """What is added to the scores, and how far apart its texts and rows lie: nowhere, where there is one for all."""
    if hidden_B1LL is None:
        return None, 0, 0
    hidden = hidden_B1LL.to(kind).expand(-1, -1, -1, length).contiguous()
    of_text, _, of_row, _ = hidden.expand(texts, 1, length, length).stride()
    return hidden, of_text, of_row
