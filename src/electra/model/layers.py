"""The blocks of a BERT-style post-norm transformer.

Shapes: B sequences, L length, D width, N heads, H head size, E embedding size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.kernels import USABLE
from electra.kernels.host import library
from electra.kernels.host.attention import attend as attend_in_loops
from electra.kernels.host.gelu import biased_gelu
from electra.kernels.host.norm import add_and_norm
from electra.model.activation import gelu
from electra.model.dropout import chance, dropout, site_keys

NORM_EPS = 1e-12  # as the released weights were trained; 1e-5 moves the logits


class Norm(nn.Module):
    """LayerNorm with fp32 weights and statistics, whatever the compute precision."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if x.dtype == self.weight.dtype or x.device.type == "cpu":  # the CPU kernel mixes precisions itself
            return F.layer_norm(x, shape, self.weight, self.bias, NORM_EPS)
        return F.layer_norm(x.float(), shape, self.weight, self.bias, NORM_EPS).to(x.dtype)


class FullLinear(nn.Linear):
    """A linear layer in fp32, whatever the compute precision: for the few outputs that decide an answer."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight, self.bias)


def gelu_of(linear: nn.Linear, x: Tensor) -> Tensor:
    """The GELU of a linear layer; in training on a CPU with a compiler, what follows the product is one loop each way.

    In fp32 that gains on the way back what it loses on the way there.
    """
    if library.usable(x) and torch.is_grad_enabled():
        return biased_gelu(F.linear(x, linear.weight), linear.bias)
    return gelu(linear(x))


def attend(
    q_BNLH: Tensor, k_BNLH: Tensor, v_BNLH: Tensor, bias_B1LL: Tensor | None, rate: float, keys_B: Tensor | None
) -> Tensor:
    """Softmax attention over the keys that `bias` leaves visible: (B, 1, L, L), or (B, 1, 1, L) for all queries."""
    if keys_B is None or rate == 0.0:
        return F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH, attn_mask=bias_B1LL)
    scores_BNLL = (q_BNLH * q_BNLH.shape[-1] ** -0.5) @ k_BNLH.transpose(-1, -2)
    if bias_B1LL is not None:
        scores_BNLL = scores_BNLL + bias_B1LL
    return dropout(scores_BNLL.softmax(-1), rate, keys_B) @ v_BNLH


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection for queries, keys and values.

    On a CPU with a compiler, what happens to scores is one loop each way.
    """

    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads = heads
        self.rate = rate
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BLD: Tensor, bias_B1LL: Tensor | None, keys_B: Tensor | None) -> Tensor:
        """(B, L, D) what the heads found, side by side: `out` is still to come."""
        how = chance(keys_B, self.rate, x_BLD.shape[1])
        if how is not None and library.usable(x_BLD):
            product_BLD = F.linear(x_BLD, self.qkv.weight)
            return attend_in_loops(product_BLD, self.qkv.bias, bias_B1LL, how, heads=self.heads)
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return attend(q, k, v, bias_B1LL, self.rate, keys_B).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """One post-norm block: attention, then feed-forward, each with dropout, residual and norm.

    On a CPU with a compiler, what stands between products is loops, one each way.
    """

    SITES = 3

    def __init__(self, width: int, heads: int, ffn: int, rate: float, attention_rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.attention = Attention(width, heads, attention_rate)
        self.attention_norm = Norm(width)
        self.up = nn.Linear(width, ffn)
        self.down = nn.Linear(ffn, width)
        self.norm = Norm(width)

    def forward(self, x_BLD: Tensor, bias_B1LL: Tensor | None, keys_B: Tensor | None, site: int) -> Tensor:
        mixed = self.attention(x_BLD, bias_B1LL, site_keys(keys_B, site))
        x_BLD = self._end(x_BLD, mixed, self.attention.out, self.attention_norm, site_keys(keys_B, site + 1))
        return self._end(x_BLD, gelu_of(self.up, x_BLD), self.down, self.norm, site_keys(keys_B, site + 2))

    def _end(self, x_BLD: Tensor, inner: Tensor, last: nn.Linear, norm: Norm, keys_B: Tensor | None) -> Tensor:
        """What ends a half: the norm of the residual and what dropout leaves of the half's last linear layer."""
        if library.usable(x_BLD) and norm.weight.dtype == torch.float32:
            how = chance(keys_B, self.rate, x_BLD.shape[-1])
            weights = (last.bias, norm.weight, norm.bias)
            return add_and_norm(x_BLD, F.linear(inner, last.weight), *weights, eps=NORM_EPS, chance=how)
        ended_BLD: Tensor = norm(x_BLD + dropout(last(inner), self.rate, keys_B))
        return ended_BLD

    def block(self) -> tuple[Tensor, ...]:
        """The weights, in the order in which the fused stack takes them."""
        modules = (self.attention.qkv, self.attention.out, self.attention_norm, self.up, self.down, self.norm)
        return tuple(weight for module in modules for weight in (module.weight, module.bias))


class Embeddings(nn.Module):
    """Token, position and segment tables, their norm and dropout; always fp32.

    On a GPU one fused kernel each way, which rounds what it gives to `given`; `fused` false leaves it plain.
    """

    fused: bool = USABLE
    given: torch.dtype = torch.float32

    def __init__(self, vocab: int, positions: int, width: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(positions, width)
        self.segment = nn.Embedding(2, width)
        self.norm = Norm(width)

    def forward(
        self, ids_BL: Tensor, segments_BL: Tensor, keys_B: Tensor | None, base_VE: Tensor | None = None
    ) -> Tensor:
        """(B, L, E); `base_VE` is a token table that is added to the own one."""
        length = ids_BL.shape[1]
        if self.fused and ids_BL.is_cuda and base_VE is None and not torch.are_deterministic_algorithms_enabled():
            return self._run_fused(ids_BL, segments_BL, keys_B)
        table_2E = self.segment.weight
        segment_BLE = torch.lerp(table_2E[0], table_2E[1], segments_BL[..., None].to(table_2E.dtype))
        summed_BLE = self.token(ids_BL) + self.position.weight[:length] + segment_BLE
        if base_VE is not None:
            summed_BLE = summed_BLE + F.embedding(ids_BL, base_VE)
        return dropout(self.norm(summed_BLE), self.rate, keys_B)

    def _run_fused(self, ids_BL: Tensor, segments_BL: Tensor, keys_B: Tensor | None) -> Tensor:
        from electra.kernels.embed import embed

        tables = (self.token.weight, self.position.weight, self.segment.weight, self.norm.weight, self.norm.bias)
        embedded_BLE: Tensor = embed(
            ids_BL, segments_BL, keys_B, tables, rate=self.rate, eps=NORM_EPS, dtype=self.given
        )
        return embedded_BLE
