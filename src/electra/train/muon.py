"""Muon: the gradient's running average of each matrix, made orthogonal, is the update.

All singular values of an update are then near 1, so that rare directions are learned as fast as frequent ones. Scaled
to the size that AdamW's updates usually have, it takes the same learning rate and weight decay (Liu et al., 2025,
arXiv 2502.16982). The average is AdamW's own (see `electra.train.optim`), so a checkpoint holds nothing more.

NorMuon (Li et al., 2025, arXiv 2510.05491) then brings the rows of the update, one a neuron, to like sizes: each is
divided by the root of a running mean of its mean square, and the whole keeps its norm. That mean takes the place of
AdamW's square, which these matrices have no use for: every number of a row holds it.

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
_BETA2 = 0.95  # of NorMuon's mean squares, as its authors train
_EPS = 1e-8


def is_layer_matrix(name: str) -> bool:
    """Whether a parameter is a matrix inside an encoder's layers; tables, heads and projections are not."""
    return _MATRIX.search(name) is not None


class Muon:
    """Updates the layers' matrices of a master from its average of gradients, on the device.

    With `by_row`, as NorMuon. The master must hold a resumed run's averages by then.
    """

    def __init__(
        self,
        master: Master,
        *,
        lr: Tensor,
        scale: Callable[[str], float],
        beta1: float,
        weight_decay: float,
        by_row: bool = False,
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
        squares = (master.square.as_strided(shape, stride, offset) for shape, stride, offset, _ in self._stacks)
        self.buffers = [square[:, :, :1].clone() for square in squares] if by_row else []
        """What a step changes beside the master's buffers: the mean squares, which AdamW does not get to see."""

    def __call__(self, norm: GradNorm) -> None:
        """Move the matrices, after `average` has taken in the step's gradient; a skipped step changes nothing."""
        master = self._master
        rate = self._lr * (1 - norm.skipped)
        for number, (shape, stride, offset, factor) in enumerate(self._stacks):
            average, gradient, weights = (
                flat.as_strided(shape, stride, offset) for flat in (master.average, master.gradient, master.weights)
            )
            # Of a skipped step nothing may reach the weights, and 0 times what is not finite is not 0.
            clipped_NRC = torch.nan_to_num(gradient / norm.divisor, nan=0.0, posinf=0.0, neginf=0.0)
            # Nesterov: the average as it would be after one more such gradient.
            ahead_NRC = self._beta * average + (1 - self._beta) * clipped_NRC
            size = _SIZE * max(shape[1:]) ** 0.5
            update_NRC = orthogonal(ahead_NRC.to(self._compute)).to(weights.dtype)
            if self.buffers:
                mean_NR1 = self.buffers[number]
                newer_NR1 = _BETA2 * mean_NR1 + (1 - _BETA2) * update_NRC.square().mean(dim=2, keepdim=True)
                mean_NR1.copy_(torch.where(norm.skipped > 0, mean_NR1, newer_NR1))
                master.square.as_strided(shape, stride, offset).copy_(mean_NR1.expand(shape))
                update_NRC = even_rows(update_NRC, mean_NR1)
            weights.sub_(rate * factor * (size * update_NRC + self._decay * weights))
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


def even_rows(x_NRC: Tensor, mean_NR1: Tensor) -> Tensor:
    """The matrices with their rows divided by the roots of these mean squares, at the norms that they had."""
    even_NRC = x_NRC / (mean_NR1.sqrt() + _EPS)
    before, after = (x.norm(dim=(1, 2), keepdim=True) for x in (x_NRC, even_NRC))
    scaled_NRC: Tensor = even_NRC * (before / after.clamp(min=1e-12))
    return scaled_NRC


def _stride(offsets: list[int], columns: int) -> tuple[int, int, int]:
    """The stride of matrices that lie equally far apart in the buffer, as the layers of one encoder do."""
    apart = {later - earlier for earlier, later in zip(offsets, offsets[1:], strict=False)} or {1}
    assert len(apart) == 1, "an encoder's layers are alike"
    return apart.pop(), columns, 1
