"""Memory of a training step: what a model needs at least, and which setting fits after a step did not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from electra import hardware
from electra.config.schema import Config
from electra.errors import ConfigError, ElectraError, is_out_of_memory
from electra.model.cost import parameters
from electra.train.execution import Execution

STATE_BYTES = 16  # of a parameter in training: weight, gradient and two averages in fp32
GATHERED_BYTES = 4  # more where it is sharded: FSDP2 has the rows of a process in storage of its own
SPARE_SHARE = 0.8  # of the free memory: the estimate of a step is none to the byte
GRADIENTS = 2  # the backward pass has gradients as large as what a layer saved, and frees late
SMALLER_MODEL = "make model.width, model.ffn, model.layers or the vocabulary smaller"


def require_memory(config: Config, device: torch.device, *, processes: int = 1) -> None:
    """Refuse a model whose weights, gradients and Adam's two averages alone are more than the device's memory."""
    count, memory = parameters(config).total, hardware.memory_bytes(device)
    needed, each, fix = count * STATE_BYTES, "", SMALLER_MODEL
    if processes > 1 and config.train.shard:
        needed = count * (STATE_BYTES + GATHERED_BYTES) // processes
        each = f" in each of {processes} processes"
    elif processes > 1:
        fix = f"{SMALLER_MODEL}, or train.shard=true"
    if memory is not None and needed > memory:
        reason = f"{count:,} parameters take {needed / 2**30:,.0f} GiB to train{each}"
        raise ConfigError("model", f"{reason}, and the device has {memory / 2**30:,.0f} GiB", fix=fix)


@contextlib.contextmanager
def advice(config: Config, execution: Execution, free: Callable[[], int | None]) -> Iterator[None]:
    """Turn an allocation that failed inside into one line with a setting that fits.

    `free` gives the bytes that the model left for its steps; None where it did not come so far.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        left = free()
        if left is None:
            raise ElectraError(f"out of memory: the model itself does not fit ({SMALLER_MODEL})") from error
        rows, fix = execution.micro_batch, smaller_step(config, execution, free=left)
        reason = f"{rows} sequences at once do not fit into the {left / 2**30:.2g} GiB that the model leaves"
        raise ElectraError(f"out of memory: {reason} (add {fix})") from error


def smaller_step(config: Config, execution: Execution, *, free: int) -> str:
    """The setting with which a step fits into so many bytes, where the step of `execution` did not."""
    rows = execution.micro_batch
    row_bytes = max(row_estimate(config, execution), free / rows)  # it did not fit: an estimate below that is wrong
    fits = int(SPARE_SHARE * free / row_bytes) if free > 0 else 0
    if fits:
        return f"train.micro_batch={1 << (fits.bit_length() - 1)}: the same maths in smaller parts"
    if not execution.recompute:
        return f"train.micro_batch=1 train.recompute=on, or data.length={config.data.length // 2}"
    return f"data.length={config.data.length // 2}, or {SMALLER_MODEL}"


def row_estimate(config: Config, execution: Execution) -> float:
    """About how many bytes a sequence of a forward and backward pass takes."""
    length, masked = config.data.length, config.masking.largest_rate * config.data.length
    saved = GRADIENTS * execution.saved_bytes / execution.micro_batch
    if execution.recompute:
        saved = saved / config.model.layers + length * config.model.width * config.model.layers * 4
    return saved + 2 * 4 * masked * config.model.vocab_size  # logits at the masked positions, and their gradient
