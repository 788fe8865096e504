"""How a run's step executes on this machine: which ops, compiled or not, captured or not, how many rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra import hardware
from electra.config.schema import Config, DataConfig, TrainConfig
from electra.model.encoder import discriminator_shape, generator_shape
from electra.objective.base import Objective
from electra.ops import Ops
from electra.ops.choice_table import described
from electra.ops.compile_ahead import launches_compile
from electra.ops.dispatch import EncoderSizes, gains_by_compiling, is_fused, saved_activations, select
from electra.train.optim import make_update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

Unit = Literal["layer", "encoder"]

TOKENS_AT_ONCE = 2**16  # more only take memory: the chip is full
COMPILE_FROM_STEPS, COMPILE_FROM_MINUTES = 10_000, 15.0  # compiling takes minutes: four for `small` on an H200


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """Everything about a step that depends on the machine, decided once."""

    device: torch.device
    dtype: torch.dtype
    """Compute precision."""
    ops: Ops
    compiled: bool
    captured: bool
    """In one CUDA graph."""
    recompute: bool
    micro_batch: int
    saved_bytes: int
    """Activations that a forward pass saves for the backward pass, about, where nothing is recomputed."""
    sharded: bool = False
    """Over the processes, by FSDP2."""
    unit: Unit = "layer"
    """What one op reads, and what is therefore gathered together where it is sharded."""

    def facts(self, world: World) -> dict[str, Any]:
        """Everything on which the last bits of a step depend, for run.json."""
        return {
            **common_facts(self.device, self.dtype, self.ops),
            "compiled": self.compiled,
            "captured": self.captured,
            "recompute": self.recompute,
            "micro_batch": self.micro_batch,
            "processes": world.size,
            "sharded": self.sharded,
        }


def common_facts(device: torch.device, dtype: torch.dtype, ops: Ops) -> dict[str, Any]:
    """That on which the last bits of any step depend, in pre-training and in fine-tuning."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "ops": described(ops),
    }


def plan_execution(config: Config, device: torch.device, *, rows: int, processes: int = 1) -> Execution:
    """The execution of a process's `rows` of each batch, as the settings ask and the machine allows.

    Several `processes` run plain steps: a captured graph would hold what they say to each other. A sharded model is not
    compiled, and its generator runs on the stream on which FSDP2 gathers weights.
    """
    train, dtype = config.train, hardware.compute_dtype(config.train.precision, device)
    encoders = _encoders(config)
    gains = gains_by_compiling(encoders, train.kernels, device=device, dtype=dtype)
    sharded = train.shard and processes > 1
    compiled = not sharded and (train.compile == "on" or (train.compile == "auto" and gains and is_long(train)))
    micro_batch = rows_at_once(train, config.data, rows)
    kernels = "plain" if compiled else train.kernels
    saved = sum(saved_activations(encoder, kernels, device=device, dtype=dtype) for encoder in encoders)
    saved_bytes = micro_batch * config.data.length * dtype.itemsize * saved
    return Execution(
        device=device,
        dtype=dtype,
        ops=select(
            train.kernels,
            device=device,
            dtype=dtype,
            compiled=compiled,
            rotary=config.model.rotary,
            reference=("generator_stream",) if sharded else (),
        ),
        compiled=compiled,
        captured=train.capture and device.type == "cuda" and processes == 1,
        recompute=pays_to_recompute(train, device, saved_bytes=saved_bytes),
        micro_batch=micro_batch,
        saved_bytes=saved_bytes,
        sharded=sharded,
        unit="encoder" if any(is_fused(one, kernels, device=device, dtype=dtype) for one in encoders) else "layer",
    )


def make_stepper(
    model: nn.Module,
    master: Master,
    objective: Objective,
    config: Config,
    execution: Execution,
    *,
    world: World,
    separator: int | None,
    progress: Tensor | None = None,
    like: Tensor | None = None,
) -> Stepper:
    """What trains the model by one step; kernels for rows `like` these are compiled already.

    `progress` is filled with the share of the run that is done.
    `separator` is what `electra.batches.layout.separator_of` gives for the rows.
    """
    stepper = Stepper(
        model,
        master,
        make_update(master, config.optim, config.generator, ops=execution.ops),
        objective,
        ops=execution.ops,
        world=world,
        micro_batch=execution.micro_batch,
        compiled=execution.compiled,
        captured=execution.captured,
        separator=separator,
        progress=progress,
        length=config.data.length,
        dropout_share=config.model.dropout_share,
        masking=config.masking,
    )
    plain = execution.captured and not execution.compiled  # otherwise processes or the compiler would join in
    if like is not None and plain and launches_compile(config.train.kernels, device=execution.device):
        stepper.compile_kernels(like)
    return stepper


def is_long(train: TrainConfig) -> bool:
    """Whether a run is long enough for minutes of compiling."""
    if train.max_minutes:
        return train.max_minutes >= COMPILE_FROM_MINUTES
    return train.steps >= COMPILE_FROM_STEPS


def rows_at_once(train: TrainConfig, data: DataConfig, rows: int) -> int:
    """Sequences of a forward pass, of a process's `rows`: `train.micro_batch`, or equal parts that are large enough."""
    if train.micro_batch:
        return min(train.micro_batch, rows)
    parts = -(-rows * data.length // TOKENS_AT_ONCE)
    return -(-rows // parts)


def pays_to_recompute(train: TrainConfig, device: torch.device, *, saved_bytes: int) -> bool:
    """Whether layers run once more in the backward pass; auto: where activations would fill over half of a GPU."""
    if train.recompute != "auto" or device.type != "cuda":
        return train.recompute == "on"
    return saved_bytes > torch.cuda.get_device_properties(device).total_memory / 2


def _encoders(config: Config) -> list[EncoderSizes]:
    """The encoders of a step, the discriminator first; those of two towers are causal."""
    shapes = [discriminator_shape(config.model)]
    two_tower = config.generator.kind == "two-tower"
    if config.objective.name != "mlm" and config.generator.kind in ("transformer", "two-tower"):
        shapes += (2 if two_tower else 1) * [generator_shape(config.model, config.generator)]
    length = config.data.length
    return [
        EncoderSizes(s.layers, s.width, s.heads, s.ffn, length, causal=two_tower and number > 0, rotary=s.rotary)
        for number, s in enumerate(shapes)
    ]
