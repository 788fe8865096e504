"""Token sequences through a network in batches of similar length, on a GPU in bf16."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import nn

from electra import hardware
from electra.batches.sequences import Sequences, unpack
from electra.finetune.batching import FlatSequences, pack
from electra.model.layers import FullLinear, with_ops
from electra.ops.dispatch import Kernels, select
from electra.tasks.rows import Features
from electra.train.replay import Arrays, Outputs, fetched, replays_of, sent

Part = TypeVar("Part", bound=nn.Module)

GPU_GRAIN = 8
"""On a GPU lengths are padded to a multiple of this: few shapes to record, and whole tiles."""
GPU_LEAST = 16
"""Shorter sequences are padded to this: fused encoders begin there."""


def placed(module: Part, kernels: Kernels, device: torch.device, *, precision: str = "auto") -> Part:
    """A copy on a device, in bf16 where that is native; norms, token tables and answers' last layers stay fp32."""
    dtype = hardware.compute_dtype(precision, device)
    copied = with_ops(module, select(kernels, device=device, dtype=dtype), dtype).to(device)
    for layer in copied.modules():
        if isinstance(layer, nn.Linear) and not isinstance(layer, FullLinear):
            layer.to(dtype)
    return copied


def in_batches(
    sequences: Sequence[list[int]],
    compute: Callable[[Sequences], Outputs],
    *,
    network: nn.Module,
    name: Hashable,
    batch_size: int,
    pad_id: int,
    positions: int,
) -> Iterator[tuple[list[int], Arrays]]:
    """The numbers of each batch's sequences, and what `compute` gives for them; the longest first.

    `name` tells apart what is computed with one network: on a GPU it is recorded by name and shape.
    """
    device = next(network.parameters()).device
    on_gpu = device.type == "cuda"
    flat = FlatSequences.of(Features(ids=list(sequences), a_lengths=[len(ids) for ids in sequences]))
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    grain, least = (GPU_GRAIN, GPU_LEAST) if on_gpu else (1, 1)
    replays, before = replays_of(network), None
    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        rows = pack(flat, numbers, pad_id=pad_id, positions=positions, grain=grain, least=least)
        with torch.inference_mode():  # not around the yield: the caller's own work is not in it
            outputs = fetched(replays.run(name, lambda one: compute(unpack(one)), sent(rows, device)))
        if before is not None:  # while the device computes
            yield before[0], before[1]()
        before = numbers, outputs
    if before is not None:
        yield before[0], before[1]()
