"""How a step is fitted to the machine: what is compiled, how many rows go at once, what is kept for the way back."""

from __future__ import annotations

import torch

from electra import hardware, kernels
from electra.config.schema import Config
from electra.model.encoder import Shape, discriminator_shape, generator_shape

TOKENS_AT_ONCE = 2**16  # more only take memory: the chip is full
COMPILE_FROM_STEPS, COMPILE_FROM_MINUTES = 100_000, 15.0


def pays_to_compile(config: Config, device: torch.device) -> bool:
    """Whether `train.compile` has the step compiled; auto: on a GPU, unless fused kernels do the work of a short run.

    Compiling takes a minute or more and then saves less than a tenth of a step beside the kernels.
    """
    train = config.train
    if train.compile != "auto" or device.type != "cuda":
        return train.compile == "on"
    fused = (
        kernels.USABLE and train.kernels == "auto" and hardware.compute_dtype(train.precision, device) == torch.bfloat16
    )
    fits = kernels.fits(config.data.length, config.model.width // config.model.heads)
    long = train.max_minutes >= COMPILE_FROM_MINUTES if train.max_minutes else train.steps >= COMPILE_FROM_STEPS
    return long or not (fused and fits)


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
    return tokens * kept_a_token(config) > torch.cuda.get_device_properties(device).total_memory / 2


def kept_a_token(config: Config) -> int:
    """About how many bytes of activations the way back needs of a token, in bf16."""
    shapes = [discriminator_shape(config.model)]
    if config.objective.name != "mlm" and config.generator.kind in ("transformer", "two-tower"):
        shapes.append(generator_shape(config.model, config.generator))
    return sum(_kept(shape) for shape in shapes)


def _kept(shape: Shape) -> int:
    # Input, queries, keys, values, their mixture, two sums and the norm between; what the GELU is given and gives.
    return 2 * shape.layers * (8 * shape.width + 2 * shape.ffn)
