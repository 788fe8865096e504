"""Clipping and the update over a model's flat buffers: AdamW, or Muon or NorMuon for the layers' matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from electra.config.schema import GeneratorConfig, OptimConfig
from electra.ops import GradNorm, Ops, ParameterGroup
from electra.train.muon import Muon, is_layer_matrix
from electra.train.schedule import newest_share
from electra.train.state import Master


class Settings(Protocol):
    """The options of AdamW, as pre-training and fine-tuning name them."""

    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip(self) -> float: ...


class Update:
    """Clips the gradient and moves the weights, all on the device; a non-finite gradient changes nothing.

    `apart` are stretches of the buffers whose gradient is clipped by a norm of its own, to the given largest one.
    `muon` makes what moves the matrices that AdamW leaves alone, after each step of it. `ema` is the decay of the
    master's average of weights.
    """

    def __init__(
        self,
        master: Master,
        optim: Settings,
        *,
        ops: Ops,
        apart: tuple[Sequence[slice], float] = ((), 0.0),
        muon: Callable[[Tensor], Muon] | None = None,
        ema: float = 0.0,
    ) -> None:
        self._master, self._clip, self._ops = master, optim.clip, ops
        self._apart, self._apart_clip = list(apart[0]), apart[1]
        self._rest = _between(self._apart, len(master.weights))
        self.lr = torch.zeros((), device=master.weights.device)
        groups = [
            ParameterGroup(group.part, group.scale, optim.weight_decay if group.decayed else 0.0)
            for group in master.groups
        ]
        self._adamw = ops.adamw(
            master.weights,
            master.gradient,
            master.average,
            master.square,
            groups,
            lr=self.lr,
            beta1=optim.beta1,
            beta2=optim.beta2,
            eps=optim.eps,
            copy=master.copy,
            copied=master.copied,
        )
        self._muon = None if muon is None else muon(self.lr)
        self._ema, self._newest = ema, torch.ones((), device=master.weights.device)

    @property
    def buffers(self) -> Sequence[Tensor]:
        """What a step changes beside the master's buffers."""
        return () if self._muon is None else self._muon.buffers

    def place(self, step: int) -> None:
        """Say how many steps there were before the next one."""
        if self._master.ema is not None:
            self._newest.fill_(newest_share(step, decay=self._ema))

    def __call__(self) -> GradNorm:
        """The gradient norm before clipping, and whether the step was skipped."""
        norm = self._clip_apart() if self._apart else self._ops.grad_norm(self._master.norm_terms(), clip=self._clip)
        self._adamw(norm)
        if self._muon is not None:
            self._muon(norm)
        self._master.publish()
        if self._master.ema is not None:
            self._master.ema.lerp_(self._master.weights, self._newest)
        return norm

    def _clip_apart(self) -> GradNorm:
        """The norm of everything else; the gradient apart is brought to where dividing by that clips it as well."""
        gradient = self._master.gradient
        norm, own = (self._master.norm_terms(parts).norm() for parts in (self._rest, self._apart))
        finite = norm.isfinite() & own.isfinite()
        divisor = (norm / self._clip).clamp(min=1.0)
        factor = divisor / (own / self._apart_clip).clamp(min=1.0)
        for part in self._apart:
            gradient[part].mul_(factor)
        return GradNorm(norm, (~finite).float(), divisor)


def scales(optim: OptimConfig, generator: GeneratorConfig) -> Callable[[str], float]:
    """The learning rate that AdamW gives a parameter, by name, as a fraction of the run's; 0 leaves it to Muon."""

    def scale(name: str) -> float:
        return 0.0 if optim.matrices != "adamw" and is_layer_matrix(name) else _share(name, generator)

    return scale


def make_update(master: Master, optim: OptimConfig, generator: GeneratorConfig, *, ops: Ops) -> Update:
    """The update of a pre-training run, over a master made with its `scales`."""
    apart = master.parts(generates) if generator.clip else []

    def muon(lr: Tensor) -> Muon:
        return Muon(
            master,
            lr=lr,
            scale=lambda name: _share(name, generator),
            beta1=optim.beta1,
            weight_decay=optim.weight_decay,
            by_row=optim.matrices == "normuon",
        )

    return Update(
        master,
        optim,
        ops=ops,
        apart=(apart, generator.clip),
        ema=optim.ema,
        muon=None if optim.matrices == "adamw" else muon,
    )


def generates(name: str) -> bool:
    """Whether a parameter, or a part of the model, is the generator's, by its name."""
    return name.startswith("generator")


def _share(name: str, generator: GeneratorConfig) -> float:
    return generator.lr_scale if generates(name) else 1.0


def _between(parts: list[slice], end: int) -> list[slice]:
    """What the parts leave of a buffer."""
    edges = [0, *(edge for part in parts for edge in (part.start, part.stop)), end]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
