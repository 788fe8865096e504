"""The blocks of a BERT-style post-norm transformer.

Shapes: B sequences, L length, D width, E embedding size.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.ops import Ops, Tables

Part = TypeVar("Part", bound=nn.Module)


class Norm(nn.Module):
    """The weights of a LayerNorm; always fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))


class FullLinear(nn.Linear):
    """A linear layer in fp32, whatever the compute precision: for the few outputs that decide an answer."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight, self.bias)


class Attention(nn.Module):
    """The weights of self-attention: one projection for queries, keys and values, one for what the heads give."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)


class Layer(nn.Module):
    """One post-norm block: attention, then an MLP, each with dropout, residual and norm."""

    def __init__(self, width: int, heads: int, ffn: int, *, dropout: float, attention_dropout: float, ops: Ops) -> None:
        super().__init__()
        self.heads, self.rate, self.attention_rate, self._ops = heads, dropout, attention_dropout, ops
        self.attention = Attention(width)
        self.attention_norm = Norm(width)
        self.up = nn.Linear(width, ffn)
        self.down = nn.Linear(ffn, width)
        self.norm = Norm(width)

    def forward(
        self,
        x_BLD: Tensor,
        mask_B1LL: Tensor | None,
        keys_B: Tensor | None,
        call_site: int,
        rotation_2LH: Tensor | None = None,
    ) -> Tensor:
        """(B, L, D); `call_site` is the first of three dropout call sites: attention, its output, the MLP's output."""
        ops, attention = self._ops, self.attention
        heads_BLD = ops.attention(
            x_BLD,
            attention.qkv.weight,
            attention.qkv.bias,
            heads=self.heads,
            mask_B1LL=mask_B1LL,
            rate=self.attention_rate,
            keys_B=call_site_keys(ops, keys_B, call_site),
            rotation_2LH=rotation_2LH,
        )
        keys = call_site_keys(ops, keys_B, call_site + 1)
        x_BLD = self._add(x_BLD, heads_BLD, attention.out, self.attention_norm, keys)
        inner_BLF = ops.linear_gelu(x_BLD, self.up.weight, self.up.bias)
        return self._add(x_BLD, inner_BLF, self.down, self.norm, call_site_keys(ops, keys_B, call_site + 2))

    def _add(self, x_BLD: Tensor, branch: Tensor, last: nn.Linear, norm: Norm, keys_B: Tensor | None) -> Tensor:
        weights = (last.weight, last.bias, norm.weight, norm.bias)
        return self._ops.add_dropout_norm(x_BLD, branch, *weights, rate=self.rate, keys_B=keys_B)

    def weights(self) -> tuple[Tensor, ...]:
        """All twelve, in the order in which a fused encoder stack takes them."""
        modules = (self.attention.qkv, self.attention.out, self.attention_norm, self.up, self.down, self.norm)
        return tuple(weight for module in modules for weight in (module.weight, module.bias))


class Embeddings(nn.Module):
    """Token, position and segment tables, their norm and dropout; the weights are always fp32.

    Without a position table where positions are `rotary`. `dtype` is what the encoder computes in: a fused
    implementation rounds its result to it.
    """

    def __init__(
        self,
        vocab: int,
        positions: int,
        width: int,
        *,
        dropout: float,
        ops: Ops,
        dtype: torch.dtype = torch.float32,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.rate, self.dtype, self.positions, self._ops = dropout, dtype, positions, ops
        self.token = nn.Embedding(vocab, width)
        self.position = None if rotary else nn.Embedding(positions, width)
        self.segment = nn.Embedding(2, width)
        self.norm = Norm(width)

    def forward(
        self, ids_BL: Tensor, segments_BL: Tensor, keys_B: Tensor | None, base_VE: Tensor | None = None
    ) -> Tensor:
        """(B, L, E); `base_VE` is a token table that is added to the own one."""
        token_VE, segment_2E = self.token.weight, self.segment.weight
        if self.position is None:  # adding 0 changes no bit, so that every implementation serves
            position_PE = token_VE.new_zeros(ids_BL.shape[1], token_VE.shape[1])
        else:
            position_PE = self.position.weight
        tables = Tables(token_VE, position_PE, segment_2E, self.norm.weight, self.norm.bias)
        return self._ops.embeddings(
            ids_BL, segments_BL, keys_B, tables, rate=self.rate, dtype=self.dtype, base_VE=base_VE
        )


def with_ops(module: Part, ops: Ops, dtype: torch.dtype) -> Part:
    """A copy of a network, or of a part of one, that computes by other ops, in `dtype`."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if hasattr(part, "_ops"):
            object.__setattr__(part, "_ops", ops)
        if isinstance(part, Embeddings):
            part.dtype = dtype
    return copied


def set_dropout(module: nn.Module, *, rate: float, attention_rate: float) -> None:
    """Give the embeddings and layers of a network other dropout rates; heads keep theirs."""
    for part in module.modules():
        if isinstance(part, Embeddings | Layer):
            part.rate = rate
        if isinstance(part, Layer):
            part.attention_rate = attention_rate


def call_site_keys(ops: Ops, keys_B: Tensor | None, call_site: int) -> Tensor | None:
    """The keys of one dropout call site, or None without dropout."""
    return None if keys_B is None else ops.fold_keys(keys_B, call_site)
