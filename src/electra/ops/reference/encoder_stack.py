"""The layers of an encoder one after another, each as `model.layers.Layer` computes it.

Shapes: B sequences, L length, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.batches.sequences import Spans

CALL_SITES = 3
"""Dropout call sites of a layer: attention, its output, the MLP's output."""


def encoder_stack(
    x_BLD: Tensor,
    layers: Sequence[nn.Module],
    *,
    lengths_B: Tensor | None,
    spans: Spans | None,
    hidden_LL: Tensor | None,
    keys_B: Tensor | None,
    recompute: bool,
    rotation_2LH: Tensor | None = None,
) -> Tensor:
    mask = attention_mask(x_BLD, lengths_B, spans, hidden_LL)
    for number, layer in enumerate(layers):
        arguments = (x_BLD, mask, keys_B, number * CALL_SITES, rotation_2LH)
        if recompute and torch.is_grad_enabled():
            x_BLD = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            x_BLD = layer(*arguments)
    return x_BLD


def attention_mask(
    x_BLD: Tensor, lengths_B: Tensor | None, spans: Spans | None, hidden_LL: Tensor | None
) -> Tensor | None:
    """(B or 1, 1, L or 1, L) numbers to add to attention scores: 0 where visible, the most negative one elsewhere."""
    dtype, length = x_BLD.dtype, x_BLD.shape[1]
    mask: Tensor | None = None
    if spans is not None:
        mask = document_mask(spans, dtype)
    elif lengths_B is not None:
        mask = padding_mask(lengths_B, length, dtype)
    if hidden_LL is not None:
        mask = x_BLD.new_zeros(1, 1, 1, 1) if mask is None else mask
        mask = mask.masked_fill(hidden_LL, torch.finfo(dtype).min)
    return mask


def padding_mask(lengths_B: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, L) visible are real tokens."""
    padding_BL = torch.arange(length, device=lengths_B.device)[None, :] >= lengths_B[:, None]
    mask_BL = torch.zeros_like(padding_BL, dtype=dtype).masked_fill(padding_BL, torch.finfo(dtype).min)
    return mask_BL[:, None, None, :]


def document_mask(spans: Spans, dtype: torch.dtype) -> Tensor:
    """(B, 1, L, L) visible are the tokens of the same document."""
    place_L = torch.arange(spans.first_BL.shape[1], device=spans.first_BL.device)
    outside_BLL = (place_L < spans.first_BL[..., None]) | (place_L >= spans.end_BL[..., None])
    mask_BLL = torch.zeros_like(outside_BLL, dtype=dtype).masked_fill(outside_BLL, torch.finfo(dtype).min)
    return mask_BLL[:, None]
