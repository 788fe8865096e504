"""One network taken out of its run: weights as data, and the module that computes with them.

Shapes: B sequences, L length, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from electra.checkpoint.tensors import require_finite
from electra.config.schema import ModelConfig
from electra.errors import CheckpointError
from electra.interop.names import Head, Tensors
from electra.model.encoder import Encoder, discriminator_shape
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import Embeddings
from electra.ops import Ops
from electra.ops.dispatch import Kernels, host_ops


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """One network as data: its sizes, its tensors by name, and which head it has."""

    config: ModelConfig
    """The sizes of this network; a generator's are its own, not the discriminator's."""
    head: Head | None
    length: int
    """The longest sequence seen in pre-training."""
    tensors: Tensors
    objective: str | None = None
    """What it was trained for, where that is known: an objective of ours; a generator's is mlm."""
    unused: tuple[str, ...] = ()
    """Names in the file that have no place in the network, such as a classifier's."""


class Network(nn.Module):
    """Embeddings, encoder and, where there is one, a pre-training head."""

    def __init__(self, config: ModelConfig, head: Head | None, *, ops: Ops) -> None:
        super().__init__()
        sizes = (config.vocab_size, config.positions, config.embedding)
        self.embeddings = Embeddings(*sizes, dropout=config.dropout, ops=ops, rotary=config.rotary)
        shape, rate = discriminator_shape(config), config.attention_dropout
        self.encoder = Encoder(shape, dropout=config.dropout, attention_dropout=rate, ops=ops)
        self.head: DetectionHead | MaskedHead | None = None
        if head == "detection":
            self.head = DetectionHead(config.width, ops=ops)
        elif head == "masked":
            self.head = MaskedHead(config.width, config.embedding, config.vocab_size, ops=ops)

    def forward(
        self, ids_BL: Tensor, segments_BL: Tensor, lengths_B: Tensor | None, keys_B: Tensor | None = None
    ) -> Tensor:
        """Last hidden states (B, L, D); `keys_B` None means no dropout."""
        hidden_BLD: Tensor = self.encoder(self.embeddings(ids_BL, segments_BL, keys_B), lengths_B, keys_B)
        return hidden_BLD

    def logits(self, ids_BL: Tensor, segments_BL: Tensor, lengths_B: Tensor | None) -> Tensor:
        """What the head says, without dropout: (B, L) replaced or (B, L, V) over the vocabulary."""
        assert self.head is not None, "an encoder without a head has no logits"
        hidden_BLD = self(ids_BL, segments_BL, lengths_B)
        if isinstance(self.head, MaskedHead):
            return self.head.logits(hidden_BLD, self.embeddings.token.weight, self.head.bias)
        return self.head(hidden_BLD)  # type: ignore[no-any-return]


class _Unfilled(TorchFunctionMode):
    """Parameters stay as they are allocated."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules made in here have parameters without memory, for weights to take their place.

    No numbers are drawn for them: torch imports its compiler for that, which takes longer than to load a model.
    """
    with torch.device("meta"), _Unfilled():
        yield


def checked(weights: Weights, where: Path) -> Weights:
    """`weights` in fp32, refused where a tensor is missing, of the wrong shape or not finite."""
    with shapes_only():
        expected = dict(Network(weights.config, weights.head, ops=host_ops("plain")).named_parameters())
    missing = sorted(expected.keys() - weights.tensors.keys())
    if missing:
        raise CheckpointError(where, f"lacks {len(missing)} tensors, the first is {missing[0]}")
    tensors: Tensors = {}
    for name, parameter in expected.items():
        tensor = weights.tensors[name]
        if tensor.shape != parameter.shape:
            reason = f"{name} is {tuple(tensor.shape)}, but the configuration says {tuple(parameter.shape)}"
            raise CheckpointError(where, reason)
        if not tensor.is_floating_point():
            raise CheckpointError(where, f"{name} holds {tensor.dtype}, not floating-point numbers")
        tensors[name] = tensor.detach().to(torch.float32)
    require_finite(tensors, where=where)
    return replace(weights, tensors=tensors)


def build(weights: Weights, *, kernels: Kernels = "auto") -> Network:
    """The module with these weights, on the CPU, in fp32."""
    with shapes_only():
        network = Network(weights.config, weights.head, ops=host_ops(kernels))
    network.load_state_dict(weights.tensors, strict=True, assign=True)
    return network.eval()
