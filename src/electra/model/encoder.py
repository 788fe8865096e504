"""The one encoder, used as generator and as discriminator.

Shapes: B sequences, L length, D width, E embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from electra.batches.sequences import Spans
from electra.config.schema import GeneratorConfig, ModelConfig
from electra.model.layers import Layer, call_site_keys
from electra.ops import Ops
from electra.ops.reference.attention import rotation

BACKWARDS_CALL_SITE = 4_000_004


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The sizes of one encoder."""

    layers: int
    width: int
    heads: int
    ffn: int
    embedding: int
    rotary: bool = False

    @property
    def head_size(self) -> int:
        return self.width // self.heads


def discriminator_shape(model: ModelConfig) -> Shape:
    sizes = {"layers": model.layers, "width": model.width, "heads": model.heads, "ffn": model.ffn}
    return Shape(**sizes, embedding=model.embedding, rotary=model.rotary)


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
    heads, rotary = max(1, width // 64), model.rotary
    return Shape(layers=layers, width=width, heads=heads, ffn=4 * width, embedding=embedding, rotary=rotary)


class Encoder(nn.Module):
    """Transformer layers over embeddings, with a projection in front where the sizes differ.

    `recompute` saves the layers' inputs only and runs each layer once more in the backward pass.
    """

    def __init__(
        self, shape: Shape, *, dropout: float, attention_dropout: float, ops: Ops, recompute: bool = False
    ) -> None:
        super().__init__()
        self.shape, self._ops, self.recompute = shape, ops, recompute
        self.project = nn.Linear(shape.embedding, shape.width) if shape.embedding != shape.width else None
        rates = {"dropout": dropout, "attention_dropout": attention_dropout}
        self.layers = nn.ModuleList(
            Layer(shape.width, shape.heads, shape.ffn, **rates, ops=ops) for _ in range(shape.layers)
        )

    def forward(
        self,
        x_BLE: Tensor,
        lengths_B: Tensor | None,
        keys_B: Tensor | None = None,
        spans: Spans | None = None,
        hidden_LL: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states (B, L, D); `lengths_B` None means no padding; `keys_B` None means no dropout.

        With `spans` a token attends to its document, and lengths play no part. `hidden_LL` says, at [i, j], that token
        i does not attend to token j; or, as (B, 1, 1, L), which tokens of each sequence none attends to.
        """
        x = x_BLE.to(next(self.layers.parameters()).dtype)
        if self.project is not None:
            x = self._ops.linear(x, self.project.weight, self.project.bias)
        turn = rotation(x.shape[1], self.shape.head_size, x.device) if self.shape.rotary else None
        return self._ops.encoder_stack(
            x,
            list(self.layers),
            lengths_B=lengths_B,
            spans=spans,
            hidden_LL=hidden_LL,
            keys_B=keys_B,
            recompute=self.recompute,
            rotation_2LH=turn,
        )


class TwoTower(nn.Module):
    """Two causal encoders, one reading forwards and one backwards: what each position's context says of it.

    A token is described by what stands before it and after it, never by itself, so nothing need be masked.
    """

    def __init__(
        self, shape: Shape, *, dropout: float, attention_dropout: float, ops: Ops, recompute: bool = False
    ) -> None:
        super().__init__()
        self.shape, self._ops = shape, ops
        rates = {"dropout": dropout, "attention_dropout": attention_dropout}
        self.forwards = Encoder(shape, **rates, ops=ops, recompute=recompute)
        self.backwards = Encoder(shape, **rates, ops=ops, recompute=recompute)

    def forward(
        self, x_BLE: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None = None, spans: Spans | None = None
    ) -> Tensor:
        """(B, L, 2D): the forward state of the token before, then the backward state of the token after; 0 at ends.

        The ends are those of a sequence or, with `spans`, of a document.
        """
        length = x_BLE.shape[1]
        place_L = torch.arange(length, device=x_BLE.device)
        later_LL = place_L[None, :] > place_L[:, None]
        before_BLD = self.forwards(x_BLE, lengths_B, keys_B, spans, later_LL)
        keys = call_site_keys(self._ops, keys_B, BACKWARDS_CALL_SITE)
        after_BLD = self.backwards(x_BLE, lengths_B, keys, spans, later_LL.T)
        if spans is not None:  # a document's last state says nothing of the next one's first token, nor vice versa
            before_BLD = before_BLD * (place_L + 1 < spans.end_BL)[..., None].to(before_BLD.dtype)
            after_BLD = after_BLD * (place_L > spans.first_BL)[..., None].to(after_BLD.dtype)
        elif lengths_B is not None:  # a state on padding has read the whole sequence
            after_BLD = after_BLD * (place_L < lengths_B[:, None])[..., None].to(after_BLD.dtype)
        nothing = torch.zeros_like(before_BLD[:, :1])
        return torch.cat(
            (
                torch.cat((nothing, before_BLD[:, :-1]), dim=1),
                torch.cat((after_BLD[:, 1:], nothing), dim=1),
            ),
            dim=2,
        )
