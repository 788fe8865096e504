"""Muon: the gradient's running average of each matrix, made orthogonal, is the update.

All singular values of an update are then near 1, so that rare directions are learned as fast as frequent ones. Scaled
to the size that AdamW's updates usually have, it takes the same learning rate and weight decay (Liu et al., 2025,
arXiv 2502.16982). The average is AdamW's own (see `electra.train.optim`), so a checkpoint holds nothing more.

Shapes: N matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from electra.ops import GradNorm
from electra.train.state import Master

_MATRIX = re.compile(r"\.layers\.\d+\.(attention\.qkv|attention\.out|up|down)\.weight$")
_QKV = "attention.qkv.weight"
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Keller Jordan: steep at 0, so that five rounds suffice
_ROUNDS = 5
_SIZE = 0.2
"""Root mean square of AdamW's usual update, as a fraction of the learning rate."""


def is_layer_matrix(name: str) -> bool:
    """Whether a parameter is a matrix inside an encoder's layers; tables, heads and projections are not."""
    return _MATRIX.search(name) is not None


class Muon:
    """Updates the layers' matrices of a master from its average of gradients, on the device."""

    def __init__(
        self, master: Master, *, lr: Tensor, scale: Callable[[str], float], beta1: float, weight_decay: float
    ) -> None:
        self._master, self._lr, self._beta, self._decay = master, lr, beta1, weight_decay
        self._compute = torch.float32 if master.copy is None else master.copy.dtype
        places: defaultdict[tuple[str, int, int, float], list[int]] = defaultdict(list)
        for name, view in master.tensors()["model"].items():
            if not is_layer_matrix(name):
                continue
            rows, columns = view.shape
            parts = 3 if name.endswith(_QKV) else 1  # queries, keys and values are matrices of their own
            for part in range(parts):
                offset = int(view.storage_offset()) + part * view.numel() // parts
                kind = f"{re.sub(r'[0-9]+', '', name)} {part}"
                places[kind, rows // parts, columns, scale(name)].append(offset)
        self._stacks = [
            ((len(offsets), rows, columns), _stride(offsets, columns), offsets[0], factor)
            for (_, rows, columns, factor), offsets in places.items()
        ]

    def __call__(self, norm: GradNorm) -> None:
        """Move the matrices, after `average` has taken in the step's gradient; a skipped step changes nothing."""
        master = self._master
        rate = self._lr * (1 - norm.skipped)
        for shape, stride, offset, factor in self._stacks:
            average, gradient, weights = (
                flat.as_strided(shape, stride, offset) for flat in (master.average, master.gradient, master.weights)
            )
            # Nesterov: the average as it would be after one more such gradient.
            ahead_NRC = self._beta * average + (1 - self._beta) * torch.nan_to_num(gradient) / norm.divisor
            size = _SIZE * max(shape[1:]) ** 0.5
            update_NRC = size * orthogonal(ahead_NRC.to(self._compute)).to(weights.dtype) + self._decay * weights
            weights.sub_(rate * factor * update_NRC)
        master.refresh()


def orthogonal(x_NRC: Tensor) -> Tensor:
    """The matrices with all singular values brought near 1, by Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    tall = x_NRC.shape[1] > x_NRC.shape[2]
    x = x_NRC.mT if tall else x_NRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    near: Tensor = x.mT if tall else x
    return near


def _stride(offsets: list[int], columns: int) -> tuple[int, int, int]:
    """The stride of matrices that lie equally far apart in the buffer, as the layers of one encoder do."""
    apart = {later - earlier for earlier, later in zip(offsets, offsets[1:], strict=False)} or {1}
    assert len(apart) == 1, "an encoder's layers are alike"
    return apart.pop(), columns, 1
