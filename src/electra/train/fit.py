"""How a step is fitted to the machine: fused or plain, compiled or not, how many rows at once, what is kept."""

from __future__ import annotations

import torch
from torch import nn

from electra import hardware, kernels
from electra.config.schema import Config
from electra.kernels.host import library
from electra.model.electra import keep_inputs_only, round_embeddings, use_plain_operations
from electra.model.encoder import Shape, discriminator_shape, generator_shape
from electra.objective.base import Objective
from electra.objective.beside import use_second_stream
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

TOKENS_AT_ONCE = 2**16  # more only take memory: the chip is full
COMPILE_FROM_STEPS, COMPILE_FROM_MINUTES = 100_000, 15.0
COMPILE_PLAIN_FROM_STEPS = 10_000  # takes minutes: four for `small` on an H200


def fit_model(model: nn.Module, config: Config, device: torch.device, *, rows: int) -> None:
    """Have the model computed as the settings and the machine ask, for a process's `rows` of a batch."""
    kernels.in_one_launch(config.train.kernels != "plain")
    library.use(config.train.kernels != "plain")
    use_second_stream(_all_fused(config, device))
    round_embeddings(model, hardware.compute_dtype(config.train.precision, device))
    if config.train.kernels == "plain":
        use_plain_operations(model)
    if pays_to_recompute(config, device, rows):
        keep_inputs_only(model)


def make_stepper(
    model: nn.Module,
    master: Master,
    objective: Objective,
    config: Config,
    *,
    world: World,
    rows: int,
    separator: int | None,
) -> Stepper:
    """What trains the model by one step, for a process's `rows` of a batch.

    `separator` is what `electra.batches.layout.separator_of` gives for these rows.
    """
    device = master.weights.device
    return Stepper(
        model,
        master,
        Update(master, config.optim, fused=config.train.kernels == "auto"),
        objective,
        world=world,
        micro_batch=rows_at_once(config, rows),
        compiled=pays_to_compile(config, device),
        captured=config.train.compile != "off",
        separator=separator,
    )


def pays_to_compile(config: Config, device: torch.device) -> bool:
    """Whether `train.compile` has the step compiled; auto: on a GPU, in runs that are long enough for it to pay.

    Beside fused kernels it takes a minute or more and then saves less than a tenth of a step.
    """
    train = config.train
    if train.compile != "auto" or device.type != "cuda":
        return train.compile == "on"
    if train.max_minutes:
        return train.max_minutes >= COMPILE_FROM_MINUTES
    return train.steps >= (COMPILE_FROM_STEPS if _all_fused(config, device) else COMPILE_PLAIN_FROM_STEPS)


def rows_at_once(config: Config, rows: int) -> int:
    """Sequences of a forward pass, of a process's `rows`: `train.micro_batch`, or equal parts that are large enough."""
    if config.train.micro_batch:
        return min(config.train.micro_batch, rows)
    parts = -(-rows * config.data.length // TOKENS_AT_ONCE)
    return -(-rows // parts)


def pays_to_recompute(config: Config, device: torch.device, rows: int) -> bool:
    """Whether layers are run once more on the way back; auto: where what they keep would fill over half of a GPU."""
    choice = config.train.recompute
    if choice != "auto" or device.type != "cuda":
        return choice == "on"
    tokens = rows_at_once(config, rows) * config.data.length
    return tokens * kept_a_token(config, device) > torch.cuda.get_device_properties(device).total_memory / 2


def kept_a_token(config: Config, device: torch.device) -> int:
    """About how many bytes of activations the way back needs of a token."""
    size = hardware.compute_dtype(config.train.precision, device).itemsize
    return sum(
        size * _numbers_kept(shape, config.data.length, fused=_runs_fused(shape, config, device))
        for shape in _shapes(config)
    )


def _numbers_kept(shape: Shape, length: int, *, fused: bool) -> int:
    # Input, queries, keys, values, their mixture, two sums and the norm between; what the GELU is given and gives.
    rows = 8 * shape.width + 2 * shape.ffn
    # Plain attention keeps its scores too: as shares, as a mask, as what is left of them.
    return shape.layers * (rows if fused else rows + 3 * shape.heads * length)


def _shapes(config: Config) -> list[Shape]:
    """The encoders of a step."""
    shapes = [discriminator_shape(config.model)]
    if config.objective.name == "mlm" or config.generator.kind not in ("transformer", "two-tower"):
        return shapes
    towers = 2 if config.generator.kind == "two-tower" else 1
    return shapes + towers * [generator_shape(config.model, config.generator)]


def _all_fused(config: Config, device: torch.device) -> bool:
    return all(_runs_fused(shape, config, device) for shape in _shapes(config))


def _runs_fused(shape: Shape, config: Config, device: torch.device) -> bool:
    """Whether this encoder runs as fused kernels (of the two towers neither does; asked for both networks alike)."""
    wanted = kernels.USABLE and config.train.kernels == "auto" and config.generator.kind != "two-tower"
    single = hardware.compute_dtype(config.train.precision, device) != torch.bfloat16
    return wanted and not single and kernels.fits(config.data.length, shape.width // shape.heads)
