"""The one encoder, used as generator and as discriminator.

Shapes: B sequences, L length, D width, E embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from electra.config.schema import GeneratorConfig, ModelConfig
from electra.model.layers import Layer


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
    """The generator's sizes: fractions of the discriminator's, heads of 64 units, blocks of four widths."""
    width = round(model.width * generator.width)
    layers = max(1, round(model.layers * generator.depth))
    return Shape(layers=layers, width=width, heads=max(1, width // 64), ffn=4 * width, embedding=model.embedding)


def padding_bias(lengths_B: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, L) numbers to add to attention scores: 0 for real tokens, the most negative one for padding."""
    padding_BL = torch.arange(length, device=lengths_B.device)[None, :] >= lengths_B[:, None]
    bias_BL = torch.zeros_like(padding_BL, dtype=dtype).masked_fill(padding_BL, torch.finfo(dtype).min)
    return bias_BL[:, None, None, :]


class Encoder(nn.Module):
    """Transformer layers over embeddings, with a projection in front where the sizes differ."""

    def __init__(self, shape: Shape, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(shape.embedding, shape.width) if shape.embedding != shape.width else None
        self.layers = nn.ModuleList(
            Layer(shape.width, shape.heads, shape.ffn, dropout, attention_dropout) for _ in range(shape.layers)
        )

    def forward(self, x_BLE: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None = None) -> Tensor:
        """Last hidden states (B, L, D); `lengths_B` None means no padding; `keys_B` None means no dropout."""
        x = x_BLE.to(next(self.layers.parameters()).dtype)
        if self.project is not None:
            x = self.project(x)
        bias = None if lengths_B is None else padding_bias(lengths_B, x.shape[1], x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, bias, keys_B, number * Layer.SITES)
        return x
