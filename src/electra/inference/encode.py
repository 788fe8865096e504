"""Texts as vectors: the encoder's last hidden states, pooled.

Shapes: N texts, B sequences, L length, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from electra import hardware
from electra.batches.sequences import Sequences
from electra.errors import CheckpointError, ConfigError
from electra.finetune.pretrained import Pretrained
from electra.inference.overlapping_windows import window_starts
from electra.inference.sequence_batches import in_batches, placed
from electra.interop.embedding_folder import Pooling
from electra.model.heads import MeanHead
from electra.progress import progress

BATCH_SIZE = 64
_BAR_TEXTS = 1000


def encode(
    model: Pretrained, texts: Sequence[str], *, pooling: Pooling = "mean", batch_size: int = BATCH_SIZE
) -> NDArray[np.float32]:
    """(N, D) one vector a text.

    `mean` averages the hidden states of the whole sequence, [CLS] and [SEP] included; `cls` takes that of [CLS]. A text
    longer than the model reads becomes windows that overlap by half; its vector is the mean of theirs.
    """
    if pooling not in get_args(Pooling):
        raise ConfigError("pooling", f"{pooling!r} is not one of {', '.join(get_args(Pooling))}")
    if batch_size < 1:
        raise ConfigError("batch size", f"{batch_size} is not at least 1")
    owners, sequences = _sequences(model, texts)
    vectors = np.zeros((len(texts), model.config.width), np.float32)
    many = len(texts) >= _BAR_TEXTS
    with progress("encoding", len(sequences), "sequences") if many else nullcontext() as bar:
        done = 0
        for batch, found in in_batches(
            sequences,
            lambda one: {"vectors": _pooled(model, one, pooling)},
            network=model.encoder,
            name=pooling,
            batch_size=batch_size,
            pad_id=model.tokenizer.pad_id,
            positions=model.embeddings.positions,
        ):
            np.add.at(vectors, owners[batch], found["vectors"])
            done += len(batch)
            if bar is not None:
                bar.update(done)
    windows = np.bincount(owners, minlength=len(texts)).astype(np.float32)
    vectors /= windows[:, None]  # every text has one
    return vectors


def on_device(model: Pretrained, device: str = "auto") -> Pretrained:
    """The encoder where it computes fastest: a copy on the GPU, in bf16 where it has that; itself without a GPU."""
    place = hardware.device(device)
    if place.type == "cpu":
        return model
    embeddings = placed(model.embeddings, model.kernels, place)
    return replace(model, embeddings=embeddings, encoder=placed(model.encoder, model.kernels, place))


def _sequences(model: Pretrained, texts: Sequence[str]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """The number of the text that each window belongs to, and the window's token ids; an empty text has one."""
    capacity = model.length - 2
    if capacity < 1:
        raise CheckpointError(model.name, f"a length of {model.length} leaves no place for text")
    tokenizer = model.tokenizer
    owners: list[int] = []
    sequences: list[list[int]] = []
    for number, ids in enumerate(tokenizer.encode_batch(list(texts))):
        for start in window_starts(len(ids), capacity) or [0]:
            owners.append(number)
            sequences.append([tokenizer.cls_id, *ids[start : start + capacity], tokenizer.sep_id])
    return np.array(owners, np.int64), sequences


def _pooled(model: Pretrained, batch: Sequences, pooling: Pooling) -> Tensor:
    """(B, D) in fp32."""
    hidden_BLD: Tensor = model.encoder(model.embeddings(batch.ids_BL, batch.segments_BL, None), batch.lengths_B, None)
    if pooling == "cls":
        return hidden_BLD[:, 0].float()
    vectors_BD: Tensor = MeanHead()(hidden_BLD, batch.lengths_B)
    return vectors_BD
