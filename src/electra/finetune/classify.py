"""Fine-tune an encoder to put one of several labels on a text.

Shapes: B texts, L length, D width, C labels.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra import rng
from electra.errors import DataError
from electra.model.dropout import dropout, site_keys
from electra.model.encoder import Encoder
from electra.model.layers import Embeddings
from electra.tokenizer.codec import Tokenizer

HEAD_SITE = 3_000_003
CHUNK_BATCHES = 16  # texts of this many batches are sorted by length together
LENGTH_STEP = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyResult:
    """How well the fine-tuned encoder does on the development texts."""

    accuracy: float
    losses: list[float]
    """Mean training loss of each epoch."""
    accuracies: list[float]
    """Share of right answers on the development texts after each epoch."""
    predictions: list[str]
    """The label given to each development text at the end."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Rows:
    ids: list[list[int]]
    labels: list[int]


class Classifier(nn.Module):
    """An encoder with dropout and one linear layer on its first token."""

    def __init__(self, embeddings: Embeddings, encoder: Encoder, *, classes: int, rate: float, seed: int) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.rate = copy.deepcopy(embeddings), copy.deepcopy(encoder), rate
        self.head = nn.Linear(encoder.shape.width, classes)
        bound = math.sqrt(6.0 / (encoder.shape.width + classes))
        with torch.no_grad():
            self.head.weight.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
            self.head.bias.zero_()
        self.float().requires_grad_(True)

    def forward(self, ids_BL: Tensor, lengths_B: Tensor, keys_B: Tensor | None = None) -> Tensor:
        """(B, C) logits; `keys_B` None means no dropout."""
        x_BLE = self.embeddings(ids_BL, torch.zeros_like(ids_BL), keys_B)
        first_BD = self.encoder(x_BLE, lengths_B, keys_B)[:, 0]
        logits_BC: Tensor = self.head(dropout(first_BD, self.rate, site_keys(keys_B, HEAD_SITE)))
        return logits_BC


def finetune_classifier(
    embeddings: Embeddings,
    encoder: Encoder,
    *,
    tokenizer: Tokenizer,
    train_rows: Sequence[tuple[str, str]],
    dev_rows: Sequence[tuple[str, str]],
    labels: Sequence[str],
    epochs: int = 4,
    batch_size: int = 32,
    lr: float = 1e-3,
    length: int = 64,
    seed: int = 0,
    layer_decay: float = 0.8,
    weight_decay: float = 0.0,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> ClassifyResult:
    """Train a copy of the encoder on (text, label) rows and judge it on others; the same for the same seed.

    `on_progress` is called with steps done, steps in all and the latest loss.
    """
    began = time.monotonic()
    train = _encode(train_rows, labels, tokenizer=tokenizer, length=length)
    dev = _encode(dev_rows, labels, tokenizer=tokenizer, length=length)
    model = Classifier(embeddings, encoder, classes=len(labels), rate=0.1, seed=seed)
    optimizer = torch.optim.AdamW(_groups(model, lr=lr, layer_decay=layer_decay, weight_decay=weight_decay), eps=1e-6)
    peaks = [group["lr"] for group in optimizer.param_groups]
    total = epochs * math.ceil(len(train.ids) / batch_size)
    step = 0
    losses: list[float] = []
    accuracies: list[float] = []
    predictions: list[int] = []
    for epoch in range(epochs):
        running = 0.0
        for picked in _batches(train, batch_size, key=rng.derive(seed, "finetune-order", epoch)):
            factor = _warm_then_decay(step, total)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            key = rng.derive(seed, "finetune-dropout", step)
            keys_B: Tensor = rng.fold(key, torch.tensor(picked, dtype=torch.int32))
            logits_BC = model(*_tensors(train, picked, pad=tokenizer.pad_id), keys_B)
            loss = F.cross_entropy(logits_BC, torch.tensor([train.labels[i] for i in picked]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            running += loss.item() * len(picked)
            if on_progress is not None:
                on_progress(step, total, loss.item())
        losses.append(running / len(train.ids))
        predictions = _predict(model, dev, pad=tokenizer.pad_id)
        right = sum(a == b for a, b in zip(predictions, dev.labels, strict=True))
        accuracies.append(right / len(dev.labels))
    return ClassifyResult(
        accuracy=accuracies[-1],
        losses=losses,
        accuracies=accuracies,
        predictions=[labels[number] for number in predictions],
        seconds=time.monotonic() - began,
    )


def _encode(rows: Sequence[tuple[str, str]], labels: Sequence[str], *, tokenizer: Tokenizer, length: int) -> _Rows:
    number = {label: i for i, label in enumerate(labels)}
    unknown = sorted({label for _, label in rows} - number.keys())
    if unknown or not rows:
        raise DataError("task rows", f"unknown label {unknown[0]!r}" if unknown else "there are none")
    encoded = tokenizer.encode_batch([text for text, _ in rows])
    ids = [[tokenizer.cls_id, *one[: length - 2], tokenizer.sep_id] for one in encoded]
    return _Rows(ids, [number[label] for _, label in rows])


def _groups(model: Classifier, *, lr: float, layer_decay: float, weight_decay: float) -> list[dict[str, object]]:
    """Parameters by learning rate and decay: the head learns fastest, each layer below it more slowly."""
    layers = len(model.encoder.layers)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if name.startswith("head."):
            depth = layers + 1
        elif name.startswith("encoder.layers."):
            depth = int(name.split(".")[2]) + 1
        else:
            depth = 0
        groups.setdefault((depth, parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": members,
            "lr": lr * layer_decay ** (layers + 1 - depth),
            "weight_decay": weight_decay if matrix else 0.0,
        }
        for (depth, matrix), members in groups.items()
    ]


def _warm_then_decay(step: int, total: int) -> float:
    warm = max(1, round(0.1 * total))
    return min((step + 1) / warm, (total - step) / max(1, total - warm), 1.0)


def _batches(rows: _Rows, batch_size: int, *, key: int) -> Iterator[list[int]]:
    """Row numbers in a random order by batches of similar length, the batches in a random order too."""
    order = np.argsort(_random(key, len(rows.ids)), kind="stable").tolist()
    chunk = CHUNK_BATCHES * batch_size
    cut: list[list[int]] = []
    for start in range(0, len(order), chunk):
        near = sorted(order[start : start + chunk], key=lambda i: len(rows.ids[i]))
        cut += [near[at : at + batch_size] for at in range(0, len(near), batch_size)]
    for number in np.argsort(_random(~key, len(cut)), kind="stable").tolist():
        yield cut[number]


def _random(key: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    indices = rng.mix(np.arange(count, dtype=np.int32))
    words: np.ndarray[tuple[int], np.dtype[np.int32]] = rng.bits(np.full(1, key, dtype=np.int32), indices)
    return words


def _tensors(rows: _Rows, picked: Sequence[int], *, pad: int) -> tuple[Tensor, Tensor]:
    lengths = [len(rows.ids[i]) for i in picked]
    longest = math.ceil(max(lengths) / LENGTH_STEP) * LENGTH_STEP
    longest = min(longest, max(len(one) for one in rows.ids))
    ids_BL = torch.full((len(picked), longest), pad)
    for row, i in enumerate(picked):
        ids_BL[row, : lengths[row]] = torch.tensor(rows.ids[i])
    return ids_BL, torch.tensor(lengths)


def _predict(model: Classifier, rows: _Rows, *, pad: int, batch_size: int = 64) -> list[int]:
    by_length = sorted(range(len(rows.ids)), key=lambda i: len(rows.ids[i]))
    found = [0] * len(by_length)
    with torch.inference_mode():
        for start in range(0, len(by_length), batch_size):
            picked = by_length[start : start + batch_size]
            for i, number in zip(picked, model(*_tensors(rows, picked, pad=pad)).argmax(1).tolist(), strict=True):
                found[i] = number
    return found
