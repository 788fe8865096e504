"""What training changes: master weights and Adam's averages, each one flat fp32 buffer.

The model's parameters are views: fp32 ones of the master buffer itself, compute-precision ones of a copy that one
kernel refreshes after each step. So casting, clipping, the update and a data-parallel sum are one launch each,
however many layers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from electra.model.layers import FullLinear
from electra.train.parallel import World

Returned = TypeVar("Returned")
WHOLE = 16
"""Buffers are filled up to a multiple of this, with zeros that stay: kernels read and write so many at once."""
TABLE, MATRIX, BIAS, VECTOR = range(4)  # order in the buffers: decayed first, compute-precision ones in the middle


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A stretch of the buffers that learns at one rate, with weight decay or without."""

    part: slice
    decayed: bool
    scale: float
    """Its learning rate as a fraction of the run's."""


class Weights:
    """Flat fp32 weights of a model, whose parameters become views of them or of a compute-precision copy.

    `scale` gives the learning rate of a parameter, by name, as a fraction of the run's; 1 where it is not given.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compute: torch.dtype,
        device: torch.device,
        scale: Callable[[str], float] = lambda name: 1.0,
    ) -> None:
        kinds = parameter_kinds(model)
        named = sorted(model.named_parameters(), key=lambda item: (kinds[item[0]], scale(item[0])))
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._shapes = [self._own(parameter).shape for parameter in self._parameters]
        self._sizes = [shape.numel() for shape in self._shapes]
        ends = [
            sum(size for size, name in zip(self._sizes, self.names, strict=True) if kinds[name] <= kind)
            for kind in (TABLE, MATRIX, BIAS, VECTOR)
        ]
        spare = -sum(self._sizes) % WHOLE
        sizes = [*self._sizes[:-1], self._sizes[-1] + spare]
        self.groups = _groups([(kinds[name] <= MATRIX, scale(name)) for name in self.names], sizes)
        self.copied = slice(ends[TABLE], ends[BIAS] + -ends[BIAS] % WHOLE)
        flat = [self._own(p.detach()).to(device, torch.float32).flatten() for p in self._parameters]
        self.weights = torch.cat([*flat, torch.zeros(spare, device=device)])
        self.copy = None if compute == torch.float32 else self.weights[self.copied].to(compute)
        self.release()
        if self.copy is not None:
            middle = [number for number, name in enumerate(self.names) if kinds[name] in (MATRIX, BIAS)]
            sizes = [self._sizes[number] for number in middle]
            parts = self.copy[: sum(sizes)].split(sizes)
            for number, part in zip(middle, parts, strict=True):
                self._point(self._parameters[number], part.view(self._shapes[number]))
        model.to(device)

    def refresh(self) -> None:
        """Bring the compute-precision copy up to date with the weights."""
        if self.copy is not None:
            self.copy.copy_(self.weights[self.copied])

    def release(self) -> None:
        """Give every parameter of the model its fp32 values."""
        for parameter, view in zip(self._parameters, self._views(self.weights), strict=True):
            self._point(parameter, view)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Named views of everything that a checkpoint holds."""
        return {"model": self._named(self.weights)}

    def parts(self, chosen: Callable[[str], bool]) -> list[slice]:
        """Where the parameters that are chosen by name lie in the buffers; neighbours as one stretch."""
        parts: list[slice] = []
        start = 0
        for name, size in zip(self.names, self._sizes, strict=True):
            end = start + size
            if chosen(name):
                joins = bool(parts) and parts[-1].stop == start
                parts[-1:] = [slice(parts[-1].start, end)] if joins else [*parts[-1:], slice(start, end)]
            start = end
        return parts

    def _own(self, tensor: Tensor) -> Tensor:
        """What this process keeps of a parameter or of its gradient: all of it."""
        return tensor

    def _point(self, parameter: Tensor, view: Tensor) -> None:
        """Give a parameter the values of a view, now and whenever they change."""
        parameter.data = view

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.names, self._views(flat), strict=True))

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


class Master(Weights):
    """Weights that are trained: with a gradient and Adam's averages, flat like them.

    With `ema`, a running average of the weights too, which starts as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compute: torch.dtype,
        device: torch.device,
        scale: Callable[[str], float] = lambda name: 1.0,
        ema: bool = False,
    ) -> None:
        super().__init__(model, compute=compute, device=device, scale=scale)
        self.gradient = torch.zeros_like(self.weights)
        self.average = torch.zeros_like(self.weights)
        self.square = torch.zeros_like(self.weights)
        self.ema = self.weights.clone() if ema else None

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Everything that a step changes, the gradient apart."""
        return self.weights, self.average, self.square, *(() if self.ema is None else (self.ema,))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A while in which the model computes with the average of its weights, where it has one."""
        if self.ema is None:
            yield
            return
        last = self.weights.clone()
        self.weights.copy_(self.ema)
        self.refresh()
        try:
            yield
        finally:
            self.weights.copy_(last)
            self.refresh()

    def collect(self, *, first: bool) -> None:
        """Move the parameters' gradients into the flat one: the first micro-batch's replace it, others add to it."""
        into = self.gradient if first else torch.zeros_like(self.gradient)
        of_kind: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for part, gradient in _runs(self._take()):
            views, gradients = of_kind.setdefault(gradient.dtype, ([], []))
            views.append(into[part])
            gradients.append(gradient)
        for views, gradients in of_kind.values():
            torch._foreach_copy_(views, gradients)
        if not first:
            self.gradient.add_(into)

    def _take(self) -> list[Tensor]:
        """The parameters' gradients, which they no longer have."""
        taken = []
        for parameter in self._parameters:
            gradient = parameter.grad if parameter.requires_grad else torch.zeros_like(parameter)
            assert gradient is not None, "a parameter took no part in the loss"
            taken.append(self._own(gradient))
            parameter.grad = None
        return taken

    def run(self, act: Callable[..., Returned], *arguments: Any, **settings: Any) -> Returned:
        """What `act` returns, which computes with the model."""
        return act(*arguments, **settings)

    def publish(self) -> None:
        """Give the model the weights after an update: here its parameters are views of them."""

    def reduce(self, world: World) -> None:
        """Sum the gradient over all processes."""
        world.sum_(self.gradient)

    def norm_terms(self, parts: Sequence[slice] = ()) -> Tensor:
        """Numbers with the norm of the gradient, or of parts of it."""
        if not parts:
            return self.gradient
        return torch.stack(torch._foreach_norm([self.gradient[part] for part in parts]))

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Where the leading process reads `tensors()` while the others `serve` it: here it has them all."""
        yield

    def serve(self) -> None:
        """Send the leading process what it asks for, until it has left `gathering`."""

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        flat = {"average": self.average, "square": self.square} | ({} if self.ema is None else {"ema": self.ema})
        return super().tensors() | {group: self._named(buffer) for group, buffer in flat.items()}

    def load(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        """Take the values of `tensors()` from another run of the same model."""
        with torch.no_grad():
            for group, views in self.tensors().items():
                for name, view in views.items():
                    view.copy_(tensors[group][name])
            self.refresh()


def _runs(gradients: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Gradients one after another, with their places in the flat one; those that lie end to end in memory as one."""
    place = 0
    run: list[Tensor] = []
    for gradient in gradients:
        if run and not _follows(run[-1], gradient):
            yield _run(run, place)
            place += sum(part.numel() for part in run)
            run = []
        run.append(gradient)
    yield _run(run, place)


def _run(parts: list[Tensor], place: int) -> tuple[slice, Tensor]:
    size = sum(part.numel() for part in parts)
    flat = parts[0].reshape(-1) if len(parts) == 1 else parts[0].as_strided((size,), (1,))
    return slice(place, place + size), flat


def _follows(one: Tensor, other: Tensor) -> bool:
    """Whether the other begins in memory where the first one ends."""
    same = one.dtype == other.dtype and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    whole = one.is_contiguous() and other.is_contiguous()
    return same and whole and one.storage_offset() + one.numel() == other.storage_offset()


def parameter_kinds(model: nn.Module) -> dict[str, int]:
    """The kind of each parameter, by name: where it lies in the buffers, and in which precision it computes."""
    kinds = {}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                kind = TABLE
            elif isinstance(module, FullLinear):
                kind = TABLE if name == "weight" else VECTOR
            elif isinstance(module, nn.Linear):
                kind = MATRIX if name == "weight" else BIAS
            else:
                kind = VECTOR
            kinds[f"{path}.{name}"] = kind
    return kinds


def _groups(traits: list[tuple[bool, float]], sizes: list[int]) -> list[Group]:
    """Neighbours of the same traits, as stretches."""
    groups: list[Group] = []
    start = 0
    for number, (trait, size) in enumerate(zip(traits, sizes, strict=True)):
        end = start + size
        if number and traits[number - 1] == trait:
            groups[-1] = Group(part=slice(groups[-1].part.start, end), decayed=trait[0], scale=trait[1])
        else:
            groups.append(Group(part=slice(start, end), decayed=trait[0], scale=trait[1]))
        start = end
    return groups
