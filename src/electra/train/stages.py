"""The stages of a run as data: what each trains, by which objective, from where to where, and how it begins.

Most runs have one. Two-stage training has two: the generator alone, by masked language modelling; then the
discriminator, with the generator frozen: no gradient, no dropout, no Adam averages, not a bit of it changes. The paper
starts the discriminator with the generator's weights, so from here on both have embeddings of their own, shared or not
before. Each stage has Adam averages, warm-up and decay of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from electra.config.schema import Config, GeneratorConfig
from electra.model.cost import stage_flops_per_token
from electra.model.electra import Electra
from electra.model.encoder import Encoder
from electra.objective.base import Objective
from electra.objective.registry import Resources, build_stages
from electra.train.loop import Position
from electra.train.optim import generates
from electra.train.state import Master, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A part of a run."""

    objective: Objective
    flops_per_token: float
    title: str = ""
    trains: Callable[[str], bool] = lambda part: True
    """Which parts of the model learn, by name; the others stay as they are."""
    begin: Callable[[nn.Module], None] = lambda model: None
    """What is done to the model before the first step."""
    start: int = 0
    """Steps of the run before it."""
    left: int = 0
    """Steps of the run after it."""

    def inside(self, position: Position) -> Position:
        """A position of the run with the end of the stage as its goal."""
        return _aiming(position, -self.left)

    def outside(self, position: Position) -> Position:
        """A position of the stage with the end of the run as its goal."""
        return _aiming(position, self.left)

    def done(self, position: Position) -> bool:
        """Whether the run has come to the end of the stage."""
        return position.total_steps is not None and position.step == position.total_steps - self.left


def plan_stages(config: Config, resources: Resources) -> tuple[Stage, ...]:
    """The stages of a run, in order."""
    objectives = build_stages(config, resources)
    flops = stage_flops_per_token(config)
    if len(objectives) == 1:
        return (Stage(objective=objectives[0], flops_per_token=flops[0]),)
    first, second = config.train.stage_steps
    return (
        Stage(
            objective=objectives[0],
            flops_per_token=flops[0],
            title="the generator alone",
            trains=generates,
            left=second,
        ),
        Stage(
            objective=objectives[1],
            flops_per_token=flops[1],
            title="the discriminator, with the generator frozen",
            trains=lambda part: not generates(part),
            begin=lambda model: begin_discriminator(
                model, config.generator, from_generator=config.train.start_from_generator
            ),
            start=first,
        ),
    )


def stages_after(stages: tuple[Stage, ...], step: int) -> tuple[Stage, ...]:
    """The stages left after `step` steps of the run: the one that goes on or begins there, and later ones."""
    current = max(number for number, stage in enumerate(stages) if stage.start <= step)
    return stages[current:]


def stage_until(stages: tuple[Stage, ...], step: int) -> Stage:
    """The stage that the run's `step`-th step was one of; of the fresh run, the first."""
    return [stage for stage in stages if stage.start < step or stage.start == 0][-1]


def trained_names(model: nn.Module, stage: Stage) -> list[str]:
    """The parameters that a stage trains."""
    return [name for name, _ in model.named_parameters() if stage.trains(name.partition(".")[0])]


def begin_discriminator(model: nn.Module, generator: GeneratorConfig, *, from_generator: bool) -> None:
    """Give the discriminator a generator's embeddings, where they are shared, and its layers, where it is to start so.

    Under `gdes` the token table is a difference from the generator's, and 0 already is the generator's own.
    """
    assert isinstance(model, Electra)
    with torch.no_grad():
        if from_generator or generator.tying == "embeddings":
            for name, value in model.generator_embeddings.named_parameters():
                if not (name == "token.weight" and model.shares_token_table):
                    model.embeddings.get_parameter(name).copy_(value)
        if from_generator:
            assert isinstance(model.generator, Encoder) and model.generator.shape == model.discriminator.shape
            model.discriminator.load_state_dict(model.generator.state_dict())


class StageWeights:
    """A model's weights during a stage: a master of what learns, and plain weights of what does not."""

    def __init__(
        self,
        model: nn.Module,
        stage: Stage,
        *,
        compute: torch.dtype,
        device: torch.device,
        scale: Callable[[str], float] = lambda name: 1.0,
        ema: bool = False,
        make_master: Callable[..., Master] = Master,
    ) -> None:
        parts = dict(model.named_children())
        fixed = {name: part for name, part in parts.items() if not stage.trains(name)}
        learning = {name: part for name, part in parts.items() if stage.trains(name)}
        self._fixed = Weights(nn.ModuleDict(fixed), compute=compute, device=device) if fixed else None
        self.master = make_master(nn.ModuleDict(learning), compute=compute, device=device, scale=scale, ema=ema)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Named views of everything that a checkpoint holds: all weights, and the averages of what learns."""
        groups = self.master.tensors()
        return groups | {"model": (self._fixed.tensors()["model"] if self._fixed else {}) | groups["model"]}

    def release(self) -> None:
        """Give the model its fp32 values back, for the next stage to take over."""
        for weights in (self.master, self._fixed):
            if weights is not None:
                weights.release()


def _aiming(position: Position, further: int) -> Position:
    total = position.total_steps
    return replace(position, total_steps=None if total is None else total + further)
