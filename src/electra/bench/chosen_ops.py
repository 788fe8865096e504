"""Which ops a measured step runs and why, and which kernels its encoders take at the measured shape."""

from __future__ import annotations

import torch

from electra.config.schema import Config
from electra.model.encoder import Shape, discriminator_shape, generator_shape
from electra.ops.choice_table import described
from electra.ops.dispatch import EncoderSizes, StackShape, is_fused, stack_plan
from electra.train.execution import Execution, plan_execution

STACK_COLUMNS = ("encoder", "layers", "attention", "linear_gelu")


def chosen_ops(config: Config, device: torch.device, *, rows: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The step's choice op by op, and on a GPU the plan of each encoder stack by its shape."""
    execution = plan_execution(config, device, rows=rows)
    stacks = encoder_plans(config, execution) if device.type == "cuda" else []
    return described(execution.ops), stacks


def encoder_plans(config: Config, execution: Execution) -> list[dict[str, str]]:
    """Which backend runs each part of each encoder; `reference` where the stack is not fused."""
    plans = []
    for name, shape in _encoders(config).items():
        plan = dict.fromkeys(STACK_COLUMNS[1:], "reference")
        if _fuses(name, shape, config, execution):
            plan = stack_plan(_stack_shape(config, execution, shape), execution.device)
        sizes = f"{execution.micro_batch} x {config.data.length}, width {shape.width}, {shape.layers} layers"
        plans.append({"encoder": f"{name} ({sizes})", **plan})
    return plans


def _encoders(config: Config) -> dict[str, Shape]:
    if config.objective.name == "mlm":
        return {"encoder": discriminator_shape(config.model)}
    shapes = {"discriminator": discriminator_shape(config.model)}
    if config.generator.kind in ("transformer", "two-tower"):
        shapes["generator"] = generator_shape(config.model, config.generator)
    return shapes


def _fuses(name: str, shape: Shape, config: Config, execution: Execution) -> bool:
    """Whether an encoder runs as a fused stack: not in a compiled step, nor with the causal attention of two towers."""
    causal = name == "generator" and config.generator.kind == "two-tower"
    encoder = EncoderSizes(shape.layers, shape.width, shape.heads, shape.ffn, config.data.length, causal=causal)
    fused = is_fused(encoder, config.train.kernels, device=execution.device, dtype=execution.dtype)
    return fused and not execution.compiled


def _stack_shape(config: Config, execution: Execution, shape: Shape) -> StackShape:
    return StackShape(
        sequences=execution.micro_batch,
        length=config.data.length,
        width=shape.width,
        heads=shape.heads,
        ffn=shape.ffn,
        documents=config.data.layout == "packed",
    )
