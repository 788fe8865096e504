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
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matrices:
    """The matrices of one kind in all layers of an encoder, as views of the master's buffers."""

    shape: tuple[int, ...]
    """(layers, parts, rows, columns): queries, keys and values are matrices of their own."""
    stride: tuple[int, ...]
    offset: int
    scale: float
    """Of the learning rate."""

    @property
    def tall(self) -> bool:
        return self.shape[2] > self.shape[3]

    def of(self, buffer: Tensor) -> Tensor:
        """Their place in a flat buffer."""
        return buffer.as_strided(self.shape, self.stride, self.offset)


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
            if is_layer_matrix(name):
                kind = re.sub(r"[0-9]+", "", name)
                places[kind, *view.shape, scale(name)].append(int(view.storage_offset()))
        kinds = [_matrices(*key, offsets) for key, offsets in places.items()]
        # Those of one size, whichever way they lie, are made orthogonal together: few products, and large ones.
        self._groups: defaultdict[tuple[int, ...], list[_Matrices]] = defaultdict(list)
        for one in kinds:
            self._groups[tuple(sorted(one.shape[2:]))].append(one)
        in_order = [one for group in self._groups.values() for one in group]
        self.buffers = [one.of(master.square)[..., :1].clone() for one in in_order] if by_row else []
        """What a step changes beside the master's buffers: the mean squares, which AdamW does not get to see."""

    def __call__(self, norm: GradNorm) -> None:
        """Move the matrices, after `average` has taken in the step's gradient; a skipped step changes nothing."""
        master = self._master
        rate, gain = self._lr * (1 - norm.skipped), (1 - self._beta) / norm.divisor
        means = iter(self.buffers)
        for group in self._groups.values():
            updates = orthogonal(torch.cat([self._ahead(one, gain) for one in group]))
            for one, update in zip(group, updates.split([one.shape[0] * one.shape[1] for one in group]), strict=True):
                oriented = (update.mT if one.tall else update).unflatten(0, one.shape[:2])
                if self.buffers:
                    oriented = self._even(one, oriented.to(master.weights.dtype), next(means), norm.skipped)
                weights = one.of(master.weights)
                if self._decay:
                    weights.mul_(1 - rate * (one.scale * self._decay))
                size = _SIZE * max(one.shape[2:]) ** 0.5
                weights.addcmul_(rate * (one.scale * size), oriented.to(weights.dtype), value=-1)
        master.refresh()

    def _ahead(self, one: _Matrices, gain: Tensor) -> Tensor:
        """(matrices, rows, columns), wide: Nesterov's average, as it would be after one more such gradient."""
        # Of a skipped step nothing may reach the weights, and 0 times what is not finite is not 0.
        clipped = torch.nan_to_num(one.of(self._master.gradient) * gain, nan=0.0, posinf=0.0, neginf=0.0)
        ahead = clipped.add_(one.of(self._master.average), alpha=self._beta).to(self._compute).flatten(0, 1)
        return ahead.mT if one.tall else ahead

    def _even(self, one: _Matrices, update: Tensor, mean: Tensor, skipped: Tensor) -> Tensor:
        """The update with rows of like sizes, and their running mean squares brought up to date."""
        newer = _BETA2 * mean + (1 - _BETA2) * update.square().mean(dim=-1, keepdim=True)
        mean.copy_(torch.where(skipped > 0, mean, newer))
        one.of(self._master.square).copy_(mean.expand(one.shape))
        return even_rows(update, mean)


def orthogonal(x_NRC: Tensor) -> Tensor:
    """The matrices with all singular values brought near 1, by Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    tall = x_NRC.shape[1] > x_NRC.shape[2]
    x = x_NRC.mT if tall else x_NRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def even_rows(x: Tensor, mean: Tensor) -> Tensor:
    """The matrices with their rows divided by the roots of these mean squares, at the norms that they had."""
    even = x / (mean.sqrt() + _EPS)
    before, after = (matrices.norm(dim=(-2, -1), keepdim=True) for matrices in (x, even))
    scaled: Tensor = even * (before / after.clamp(min=1e-12))
    return scaled


def _matrices(kind: str, rows: int, columns: int, scale: float, offsets: list[int]) -> _Matrices:
    """Of one kind: they lie equally far apart in the buffer, as the layers of one encoder do."""
    apart = {later - earlier for earlier, later in zip(offsets, offsets[1:], strict=False)} or {1}
    assert len(apart) == 1, "an encoder's layers are alike"
    parts = 3 if kind.endswith(_QKV) else 1
    shape = (len(offsets), parts, rows // parts, columns)
    stride = (apart.pop(), rows // parts * columns, columns, 1)
    return _Matrices(shape=shape, stride=stride, offset=offsets[0], scale=scale)
