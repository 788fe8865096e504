"""A model in parts, by FSDP2: each process keeps its rows of the large matrices and updates these alone.

Sharded are the tables and the matrices of the layers, by rows: process 0 has the first ones. Norms and heads, about a
hundredth of the weights of `base`, stay whole everywhere, in fp32 or in compute precision as without sharding. Layers
are gathered one at a time, forward and backward; everything else, the table that generator and discriminator share
included, from the beginning of a forward pass to the end of its backward pass.

The step is the one of `electra.train.step`: flat buffers hold what this process keeps, AdamW runs over them as ever,
and only three things speak to the others: gathering weights, summing gradients into the rows of their owners, and one
number a process for the gradient norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder
from electra.model.layers import Layer
from electra.train.execution import Unit
from electra.train.parallel import World
from electra.train.state import BIAS, MATRIX, TABLE, Master, Returned, parameter_kinds

_UNITS: dict[Unit, type[nn.Module]] = {"layer": Layer, "encoder": Encoder}


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which rows of which parameters each process keeps."""

    world: World
    sizes: dict[str, torch.Size]
    """The whole shapes of the parameters that are sharded, by name."""
    units: type[nn.Module]
    """Modules whose weights are gathered together, when they are called."""

    def rows(self, name: str, rank: int | None = None) -> slice:
        """The rows of a parameter that a process keeps, by default this one; all where it is not sharded."""
        if name not in self.sizes:
            return slice(None)
        count = self.sizes[name][0]
        each = -(-count // self.world.size)  # as FSDP2 cuts
        first = each * (self.world.rank if rank is None else rank)
        return slice(min(first, count), min(first + each, count))

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this process keeps of a parameter."""
        return whole[self.rows(name)] if name in self.sizes else whole


def plan_sharding(model: nn.Module, *, world: World, unit: Unit) -> Sharding:
    """How a model is sharded. A unit is what one op reads: a layer, or a whole encoder."""
    units = _UNITS[unit]
    inside = {id(p) for unit in model.modules() if isinstance(unit, units) for p in unit.parameters()}
    kinds = parameter_kinds(model)
    sizes = {
        name: parameter.shape
        for name, parameter in model.named_parameters()  # a shared one has one name: the first
        if kinds[name] == TABLE or (kinds[name] in (MATRIX, BIAS) and id(parameter) in inside)
    }
    return Sharding(world, sizes, units)


class ShardedMaster(Master):
    """Weights of which this process keeps and trains its rows; the model's parameters are FSDP2's."""

    def __init__(
        self,
        model: nn.Module,
        *,
        sharding: Sharding,
        compute: torch.dtype,
        device: torch.device,
        scale: Callable[[str], float] = lambda name: 1.0,
        ema: bool = False,
    ) -> None:
        self._sharding, self._world = sharding, sharding.world
        exact = {name: sharding.part(name, p.detach()).clone() for name, p in model.named_parameters()}
        self._root = _shard(model, sharding, compute=compute, device=device)
        super().__init__(model, compute=compute, device=device, scale=scale, ema=ema)
        for name, view in self._named(self.weights).items():
            view.copy_(exact[name])  # in fp32, not rounded to compute precision
        if self.ema is not None:
            self.ema.copy_(self.weights)
        self.refresh()
        self._whole = self.parts(lambda name: name not in sharding.sizes)
        # Each process counts its rows for the norm; what all have whole is counted by the leading one.
        mine = self.parts(lambda name: name in sharding.sizes)
        self._counted = [slice(0, len(self.weights))] if self._world.leads else mine

    def run(self, act: Callable[..., Returned], *arguments: Any, **settings: Any) -> Returned:
        with self._world.named_when_lost():
            return cast(Returned, self._root(act, *arguments, **settings))

    def refresh(self) -> None:
        super().refresh()
        self.publish()

    def publish(self) -> None:
        """Copy the rows into FSDP2's parameters, to be gathered from there."""
        self._root.reshard()
        values = self._named(self.weights)
        sharded = [(p, values[name]) for name, p in zip(self.names, self._parameters, strict=True) if _is_sharded(p)]
        torch._foreach_copy_([self._own(p.detach()) for p, _ in sharded], [value for _, value in sharded])

    def reduce(self, world: World) -> None:
        """Sum the gradients of what is whole; FSDP2 has summed those of the rows."""
        gradients = [self.gradient[part] for part in self._whole]
        summed = world.sum_(torch.cat(gradients))
        torch._foreach_copy_(gradients, list(summed.split([len(part) for part in gradients])))

    def norm_terms(self, parts: Sequence[slice] = ()) -> Tensor:
        """One norm a process, the same numbers on all: a bad one anywhere is a bad one everywhere."""
        counted = _overlap(parts or [slice(0, len(self.gradient))], self._counted)
        terms = self.gradient.new_zeros(self._world.size)
        if counted:
            norms = torch._foreach_norm([self.gradient[part] for part in counted])
            terms[self._world.rank] = torch.stack(norms).norm()
        return self._world.sum_(terms)

    def load(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        """Take Adam's averages, in this process's rows, of the run whose weights the model has."""
        with torch.no_grad():
            averages = super().tensors()
            del averages["model"]
            for group, views in averages.items():
                for name, view in views.items():
                    view.copy_(tensors[group][name])

    def tensors(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint holds, by name: sharded ones as `Split`, put together when they are written."""
        groups, number = super().tensors(), 0
        for named in groups.values():
            for name, part in named.items():
                if name in self._sharding.sizes:
                    named[name] = cast(Tensor, Split(number, name, part, self._sharding))
                    number += 1
        return groups

    @contextmanager
    def gathering(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._world.lead(None)

    def serve(self) -> None:
        split = [t for named in self.tensors().values() for t in named.values() if isinstance(t, Split)]
        while (number := self._world.lead(None)) is not None:
            if split[number].part.numel():
                self._world.send(split[number].part)

    def _own(self, tensor: Tensor) -> Tensor:
        local: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]
        return local

    def _point(self, parameter: Tensor, view: Tensor) -> None:
        if _is_sharded(parameter):
            return  # it has storage of its own, which `refresh` fills
        super()._point(parameter, view)


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor whose rows lie on all processes; the leading one can have it whole."""

    number: int
    """By which the leading process asks for it."""
    name: str
    part: Tensor
    sharding: Sharding

    @property
    def shape(self) -> torch.Size:
        return self.sharding.sizes[self.name]

    @property
    def dtype(self) -> torch.dtype:
        return self.part.dtype

    def whole(self) -> Tensor:
        """All rows; the other processes send theirs, by `ShardedMaster.serve`."""
        world = self.sharding.world
        world.lead(self.number)
        whole = self.part.new_empty(self.shape)
        for rank in range(world.size):
            rows = whole[self.sharding.rows(self.name, rank)]
            if rank == world.rank:
                rows.copy_(self.part)
            elif rows.numel():
                world.receive(rows, rank)
        return whole


class _Root(nn.Module):
    """What FSDP2 puts its hooks on: whatever computes with the model runs inside a call of this."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, act: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        return act(*arguments, **settings)


def _shard(model: nn.Module, sharding: Sharding, *, compute: torch.dtype, device: torch.device) -> Any:
    """The root of a model whose sharded parameters FSDP2 has taken over: units first, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kinds = parameter_kinds(model)
    whole = set()
    for name, parameter in model.named_parameters():
        if name not in sharding.sizes:
            whole.add(parameter)
        elif kinds[name] != TABLE:
            parameter.data = parameter.data.to(compute)
    mesh = init_device_mesh(device.type, (sharding.world.size,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    root = _Root(model)
    for module in [*(unit for unit in model.modules() if isinstance(unit, sharding.units)), root]:
        sharded = fully_shard(module, mesh=mesh, ignored_params=whole, mp_policy=policy)
        # Sums, not means: the loss is divided by counts over all processes.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return root


def _is_sharded(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _overlap(parts: Sequence[slice], others: Sequence[slice]) -> list[slice]:
    """What two lists of stretches have in common."""
    both = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a in parts for b in others]
    return [part for part in both if part.start < part.stop]
