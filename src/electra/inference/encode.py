"""Texts as vectors: the encoder's last hidden states, pooled.

Shapes: N texts, B sequences, L length, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra import hardware
from electra.errors import CheckpointError, ConfigError
from electra.finetune.pretrained import Pretrained
from electra.inference.overlapping_windows import window_starts
from electra.interop.embedding_folder import Pooling
from electra.model.layers import with_ops
from electra.ops.dispatch import select
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
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))  # batches of similar length
    many = len(texts) >= _BAR_TEXTS
    with progress("encoding", len(sequences), "sequences") if many else nullcontext() as bar:
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            for number, vector in zip(batch, _pooled(model, [sequences[n] for n in batch], pooling), strict=True):
                vectors[owners[number]] += vector
            if bar is not None:
                bar.update(first + len(batch))
    windows = np.bincount(owners, minlength=len(texts)).astype(np.float32)
    vectors /= windows[:, None]  # every text has one
    return vectors


def on_device(model: Pretrained, device: str = "auto") -> Pretrained:
    """The encoder, in fp32, on the GPU where there is one."""
    place = hardware.device(device)
    if place.type == "cpu":
        return model
    ops = select(model.kernels, device=place, dtype=torch.float32)
    embeddings = with_ops(model.embeddings, ops, torch.float32).to(place)
    encoder = with_ops(model.encoder, ops, torch.float32).to(place)
    return replace(model, embeddings=embeddings, encoder=encoder)


def _sequences(model: Pretrained, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The token ids of every window, and the number of the text that each belongs to; an empty text has one."""
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
    return owners, sequences


def _pooled(model: Pretrained, sequences: Sequence[list[int]], pooling: Pooling) -> NDArray[np.float32]:
    device = next(model.encoder.parameters()).device
    lengths_B = torch.tensor([len(ids) for ids in sequences], device=device)
    length = int(lengths_B.max())
    padded = [ids + [model.tokenizer.pad_id] * (length - len(ids)) for ids in sequences]
    ids_BL = torch.tensor(padded, device=device)
    with torch.inference_mode():
        x_BLE = model.embeddings(ids_BL, torch.zeros_like(ids_BL), None)
        hidden_BLD: Tensor = model.encoder(x_BLE, lengths_B, None)
        if pooling == "cls":
            vectors_BD = hidden_BLD[:, 0]
        else:
            inside_BL1 = (torch.arange(length, device=device) < lengths_B[:, None])[:, :, None]
            vectors_BD = (hidden_BLD * inside_BL1).sum(1) / lengths_B[:, None]
        found: NDArray[np.float32] = vectors_BD.float().cpu().numpy()
        return found
