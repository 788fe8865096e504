"""The one encoder, used as generator and as discriminator.

Shapes: B sequences, L length, D width, E embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.batches.sequences import Spans
from electra.config.schema import GeneratorConfig, ModelConfig
from electra.kernels import USABLE, fits
from electra.model.dropout import site_keys
from electra.model.layers import NORM_EPS, Layer

BACKWARDS_SITE = 4_000_004


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The sizes of one encoder."""

    layers: int
    width: int
    heads: int
    ffn: int
    embedding: int


def discriminator_shape(model: ModelConfig) -> Shape:
    return Shape(layers=model.layers, width=model.width, heads=model.heads, ffn=model.ffn, embedding=model.embedding)


def generator_shape(model: ModelConfig, generator: GeneratorConfig) -> Shape:
    """The generator's sizes: fractions of the discriminator's, heads of 64 units, blocks of four widths.

    A token table of its own is as wide as the generator, so that nothing is projected, as in the released code.
    Where everything is shared, the generator is the discriminator's encoder, whatever its heads and blocks.
    """
    if generator.tying == "all":
        return discriminator_shape(model)
    width = round(model.width * generator.width)
    layers = max(1, round(model.layers * generator.depth))
    embedding = width if generator.tying == "none" else model.embedding
    return Shape(layers=layers, width=width, heads=max(1, width // 64), ffn=4 * width, embedding=embedding)


def padding_bias(lengths_B: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, L) numbers to add to attention scores: 0 for real tokens, the most negative one for padding."""
    padding_BL = torch.arange(length, device=lengths_B.device)[None, :] >= lengths_B[:, None]
    bias_BL = torch.zeros_like(padding_BL, dtype=dtype).masked_fill(padding_BL, torch.finfo(dtype).min)
    return bias_BL[:, None, None, :]


def document_bias(spans: Spans, dtype: torch.dtype) -> Tensor:
    """(B, 1, L, L) numbers to add to attention scores: 0 inside a document, the most negative one between two."""
    place_L = torch.arange(spans.first_BL.shape[1], device=spans.first_BL.device)
    outside_BLL = (place_L < spans.first_BL[..., None]) | (place_L >= spans.end_BL[..., None])
    bias_BLL = torch.zeros_like(outside_BLL, dtype=dtype).masked_fill(outside_BLL, torch.finfo(dtype).min)
    return bias_BLL[:, None]


class Encoder(nn.Module):
    """Transformer layers over embeddings, with a projection in front where the sizes differ.

    On a GPU in bf16, layers run as fused kernels where they fit; `fused` false leaves them plain. `recompute` keeps the
    layers' inputs only, and runs each once more on the way back.
    """

    fused: bool = USABLE
    recompute: bool = False

    def __init__(self, shape: Shape, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(shape.embedding, shape.width) if shape.embedding != shape.width else None
        self.layers = nn.ModuleList(
            Layer(shape.width, shape.heads, shape.ffn, dropout, attention_dropout) for _ in range(shape.layers)
        )

    def forward(
        self,
        x_BLE: Tensor,
        lengths_B: Tensor | None,
        keys_B: Tensor | None = None,
        spans: Spans | None = None,
        unseen_LL: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states (B, L, D); `lengths_B` None means no padding; `keys_B` None means no dropout.

        With `spans`, a token sees what lies in its span, and lengths play no part. `unseen_LL` says, at [i, j], that
        token i does not see token j.
        """
        x = x_BLE.to(next(self.layers.parameters()).dtype)
        if self.project is not None:
            x = self._project(x, self.project)
        if self._fits(x) and unseen_LL is None:
            return self._run_fused(x, lengths_B, keys_B, spans)
        if spans is not None:
            bias: Tensor | None = document_bias(spans, x.dtype)
        else:
            bias = None if lengths_B is None else padding_bias(lengths_B, x.shape[1], x.dtype)
        if unseen_LL is not None:
            bias = x.new_zeros(1, 1, 1, 1) if bias is None else bias
            bias = bias.masked_fill(unseen_LL, torch.finfo(x.dtype).min)
        for number, layer in enumerate(self.layers):
            if self.recompute and torch.is_grad_enabled():
                arguments = (x, bias, keys_B, number * Layer.SITES)
                x = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, bias, keys_B, number * Layer.SITES)
        return x

    def _project(self, x_BLE: Tensor, linear: nn.Linear) -> Tensor:
        if not self._may_fuse(x_BLE):
            plain_BLD: Tensor = linear(x_BLE)
            return plain_BLD
        from electra.kernels.project import project

        x_BLD: Tensor = project(x_BLE, linear.weight, linear.bias)
        return x_BLD

    def _may_fuse(self, x: Tensor) -> bool:
        return self.fused and x.is_cuda and x.dtype == torch.bfloat16

    def _fits(self, x_BLD: Tensor) -> bool:
        return self._may_fuse(x_BLD) and fits(x_BLD.shape[1], self.shape.width // self.shape.heads)

    def _run_fused(
        self, x_BLD: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None, spans: Spans | None = None
    ) -> Tensor:
        from electra.kernels.layer import Plan
        from electra.kernels.stack import run_stack

        layers = cast("list[Layer]", list(self.layers))
        plan = Plan(
            heads=self.shape.heads,
            rate=layers[0].rate,
            attention_rate=layers[0].attention.rate,
            eps=NORM_EPS,
            sites=Layer.SITES,
            recompute=self.recompute,
        )
        weights = [weight for layer in layers for weight in layer.block()]
        hidden_BLD: Tensor = run_stack(x_BLD, lengths_B, keys_B, plan, weights, spans)
        return hidden_BLD


class TwoTower(nn.Module):
    """Two causal encoders, one reading forwards and one backwards: what each position's context says of it.

    A token is described by what stands before it and after it, never by itself, so nothing need be masked.
    """

    def __init__(self, shape: Shape, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.forwards = Encoder(shape, dropout=dropout, attention_dropout=attention_dropout)
        self.backwards = Encoder(shape, dropout=dropout, attention_dropout=attention_dropout)

    def forward(
        self, x_BLE: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None = None, spans: Spans | None = None
    ) -> Tensor:
        """(B, L, 2D): the forward state of the token before, then the backward state of the token after; 0 at ends.

        The ends are those of a text or, with `spans`, of a document.
        """
        length = x_BLE.shape[1]
        place_L = torch.arange(length, device=x_BLE.device)
        later_LL = place_L[None, :] > place_L[:, None]
        before_BLD = self.forwards(x_BLE, lengths_B, keys_B, spans, later_LL)
        after_BLD = self.backwards(x_BLE, lengths_B, site_keys(keys_B, BACKWARDS_SITE), spans, later_LL.T)
        if spans is not None:  # what ends a document is of no use to the first token of the next, nor the other way
            before_BLD = before_BLD * (place_L + 1 < spans.end_BL)[..., None].to(before_BLD.dtype)
            after_BLD = after_BLD * (place_L > spans.first_BL)[..., None].to(after_BLD.dtype)
        elif lengths_B is not None:  # what stands on padding has seen the whole text
            after_BLD = after_BLD * (place_L < lengths_B[:, None])[..., None].to(after_BLD.dtype)
        nothing = torch.zeros_like(before_BLD[:, :1])
        return torch.cat(
            (
                torch.cat((nothing, before_BLD[:, :-1]), dim=1),
                torch.cat((after_BLD[:, 1:], nothing), dim=1),
            ),
            dim=2,
        )
