"""Tiny models, made-up batches and documents in memory for tests of batches, objectives and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.batches.layout import Specials
from electra.config.schema import Config, DataConfig, GeneratorConfig, ModelConfig, OptimConfig
from electra.model.electra import Bert, Electra, build_model
from electra.model.layers import Norm, with_ops
from electra.objective.base import Objective
from electra.objective.registry import Frequencies, Resources, build_objective
from electra.ops import Ops
from electra.ops.dispatch import host_ops, select
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIALS = Specials(pad=PAD, cls=CLS, sep=SEP, mask=MASK)
VOCAB = 150
OPS = host_ops()
"""What a run on this CPU computes with in fp32."""
RESOURCES = Resources(SPECIALS, OPS)
Part = TypeVar("Part", bound=nn.Module)


def lowbias32(x: int) -> int:
    """The published permutation, on a plain unsigned number."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def unmix(y: int) -> int:
    """The number that the permutation turns into `y`."""
    x = y ^ y >> 16
    x = x * pow(0x846CA68B, -1, 2**32) % 2**32
    x = x ^ x >> 15 ^ x >> 30
    x = x * pow(0x7FEB352D, -1, 2**32) % 2**32
    return x ^ x >> 16


def signed(x: int) -> int:
    x %= 2**32
    return x - 2**32 if x >= 2**31 else x


def plain_fold(key: int, data: int) -> int:
    """`rng.fold` on plain numbers."""
    return signed(lowbias32(key % 2**32 ^ lowbias32(data * 0x9E3779B9 % 2**32)) + 0x9E3779B9)


def tiny_config(**parts: Any) -> Config:
    """A config of two layers; `parts` are whole sections (optim=..., masking=...) or `dropout` for both rates."""
    rate = parts.pop("dropout", 0.1)
    model = ModelConfig(
        layers=2,
        width=32,
        heads=2,
        ffn=64,
        embedding=16,
        vocab_size=VOCAB,
        positions=64,
        dropout=rate,
        attention_dropout=rate,
    )
    base = Config(
        model=model,
        generator=GeneratorConfig(width=0.5),
        data=DataConfig(length=24),
        optim=OptimConfig(lr=1e-3, warmup_steps=2),
    )
    return replace(base, **parts)


def make_model(
    config: Config, *, ops: Ops = OPS, frequencies: Frequencies | None = None, dtype: torch.dtype = torch.float32
) -> Electra | Bert:
    """A fresh network, as a run on a CPU builds it."""
    return build_model(config, ops=ops, dtype=dtype, frequencies=frequencies)


def make_electra(config: Config, *, ops: Ops = OPS) -> Electra:
    """A fresh generator and discriminator."""
    model = make_model(config, ops=ops)
    assert isinstance(model, Electra)
    return model


def make_objective(
    config: Config, *, ops: Ops = OPS, frequencies: Frequencies | None = None, progress: Tensor | None = None
) -> Objective:
    """The configured objective over the tiny vocabulary."""
    return build_objective(config, Resources(SPECIALS, ops, frequencies, progress=progress))


def in_double(module: Part) -> Part:
    """A copy of a network in double precision, computed by the reference ops."""
    copied: Part = with_ops(module, host_ops("plain"), torch.float64).double()
    return copied


def layer_norm(norm: Norm, x: Tensor) -> Tensor:
    """LayerNorm by its formula."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt() * norm.weight + norm.bias


def ragged_rows(count: int, *, length: int = 24, vocab: int = VOCAB, seed: int = 0, full: bool = False) -> Tensor:
    """Packed rows of random text: two segments, lengths from 5 to all of the row, keys all over the range."""
    random = np.random.default_rng(seed)
    rows = np.zeros((count, length + 3), np.int32)
    for row in rows:
        size = length if full else int(random.integers(5, length + 1))
        first = int(random.integers(3, size))
        row[:size] = random.integers(MASK + 1, vocab, size)
        row[0], row[first - 1], row[size - 1] = CLS, SEP, SEP
        row[length:] = size, first, random.integers(-(2**31), 2**31)
    return torch.from_numpy(rows)


class Documents:
    """Documents (lists of sentences of token ids) as a layout reads prepared data."""

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]], *, ids: Sequence[int] | None = None) -> None:
        sentences = [sentence for document in documents for sentence in document]
        self._tokens = np.array([token for sentence in sentences for token in sentence], np.int32)
        self.sentence_starts = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        self.document_starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        names = range(len(documents)) if ids is None else ids
        self.document_ids = np.array([number * 0x9E3779B97F4A7C15 % 2**64 for number in names], np.uint64)

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        return self._tokens[positions]


def numbered(lengths: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Documents whose sentences have these lengths and whose tokens are all different, from 10 upwards."""
    number = 10
    documents = []
    for document in lengths:
        sentences = []
        for size in document:
            sentences.append(list(range(number, number + size)))
            number += size
        documents.append(sentences)
    return documents


class Trainer:
    """Everything that a step needs, put together as a run does it, on the CPU."""

    def __init__(
        self,
        config: Config,
        *,
        micro: int,
        compute: torch.dtype = torch.float32,
        frequencies: Frequencies | None = None,
        separator: int | None = None,
        ops: Ops | None = None,
    ) -> None:
        ops = ops or select("auto", device=torch.device("cpu"), dtype=compute)
        self.model: nn.Module = make_model(config, ops=ops, dtype=compute)
        progress = torch.zeros((), dtype=torch.float64)
        self.objective: Objective = make_objective(config, ops=ops, frequencies=frequencies, progress=progress)
        ema = config.optim.ema
        self.master = Master(self.model, compute=compute, device=torch.device("cpu"), ema=bool(ema))
        self.update = Update(self.master, config.optim, ops=ops, ema=ema)
        self.step = Stepper(
            self.model,
            self.master,
            self.update,
            self.objective,
            ops=ops,
            world=World(),
            micro_batch=micro,
            compiled=False,
            captured=False,
            separator=separator,
            progress=progress,
            dropout_share=config.model.dropout_share,
            masking=config.masking,
        )
