"""Texts as vectors: the encoder's last hidden states, pooled.

Shapes: N texts, W windows, B sequences, L length, D width.
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
from electra.finetune.batch_outputs import in_batches
from electra.finetune.pretrained import Pretrained
from electra.inference.overlapping_windows import Windows, cut
from electra.inference.placement import placed
from electra.interop.embedding_folder import Pooling
from electra.model.heads import MeanHead
from electra.progress import progress
from electra.tokenizer.many_texts import encode_many

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
    windows = _windows(model, texts)
    count = len(windows.sequences.sizes)
    vectors_WD = np.zeros((count, model.config.width), np.float32)
    with progress("encoding", count, "sequences") if len(texts) >= _BAR_TEXTS else nullcontext() as bar:
        done = 0
        for batch, found in in_batches(
            windows.sequences,
            lambda one: {"vectors": _pooled(model, one, pooling)},
            network=model.encoder,
            name=pooling,
            batch_size=batch_size,
            pad_id=model.tokenizer.pad_id,
            positions=model.embeddings.positions,
        ):
            vectors_WD[batch] = found["vectors"]
            done += len(batch)
            if bar is not None:
                bar.update(done)
    if count == len(texts):
        return vectors_WD
    counts_N = np.diff(windows.firsts_N, append=count).astype(np.float32)
    vectors_ND: NDArray[np.float32] = np.add.reduceat(vectors_WD, windows.firsts_N)
    vectors_ND /= counts_N[:, None]
    return vectors_ND


def on_device(model: Pretrained, device: str = "auto") -> Pretrained:
    """The encoder where it computes fastest: a copy on the GPU, in bf16 where it has that; itself without a GPU."""
    place = hardware.device(device)
    if place.type == "cpu":
        return model
    embeddings = placed(model.embeddings, model.kernels, place)
    return replace(model, embeddings=embeddings, encoder=placed(model.encoder, model.kernels, place))


def _windows(model: Pretrained, texts: Sequence[str]) -> Windows:
    """The windows of each text; an empty one has one too."""
    capacity = model.length - 2
    if capacity < 1:
        raise CheckpointError(model.name, f"a length of {model.length} leaves no place for text")
    return cut(encode_many(model.tokenizer, texts), capacity=capacity, tokenizer=model.tokenizer)


def _pooled(model: Pretrained, batch: Sequences, pooling: Pooling) -> Tensor:
    """(B, D) in fp32."""
    hidden_BLD: Tensor = model.encoder(model.embeddings(batch.ids_BL, batch.segments_BL, None), batch.lengths_B, None)
    if pooling == "cls":
        return hidden_BLD[:, 0].float()
    vectors_BD: Tensor = MeanHead()(hidden_BLD, batch.lengths_B)
    return vectors_BD
