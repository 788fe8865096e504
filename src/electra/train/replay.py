"""A network's forward over many batches: recorded by shape on a GPU, results fetched while the next batch computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.train.capture import Captured

OFTEN = 3
"""From this time on a shape is replayed: recording costs a few forwards."""
MOST_SHAPES = 64

Outputs = dict[str, Tensor]
Arrays = dict[str, NDArray[Any]]


class Replays:
    """The recordings of one network, by what is computed and the shape of the input."""

    def __init__(self) -> None:
        self._calls: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, tuple[Captured, Outputs]] = {}
        self._pool: Any = None

    def run(self, name: Hashable, compute: Callable[[Tensor], Outputs], rows: Tensor) -> Outputs:
        """`compute(rows)`; what it gives holds until the next call. On a CPU, and for rare shapes, a plain call."""
        key = (name, rows.shape)
        self._calls[key] += 1
        if rows.device.type != "cuda" or self._calls[key] < OFTEN or not self._may_record(key):
            return compute(rows)
        if key not in self._recorded:
            outputs: Outputs = {}
            captured = Captured(lambda inputs: outputs.update(compute(inputs)), [rows], changed=(), pool=self._pool)
            self._pool = captured.pool
            self._recorded[key] = captured, outputs
        captured, outputs = self._recorded[key]
        captured(rows)
        return outputs

    def _may_record(self, key: Hashable) -> bool:
        return key in self._recorded or len(self._recorded) < MOST_SHAPES


_REPLAYS: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()


def replays_of(network: nn.Module) -> Replays:
    """The network's own; they go with it. Its weights may change in place, but not move."""
    return _REPLAYS.setdefault(network, Replays())


def sent(rows: NDArray[np.int32], device: torch.device) -> Tensor:
    """The rows on the device, on their way while the host goes on."""
    host = torch.from_numpy(rows)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def fetched(outputs: Outputs) -> Callable[[], Arrays]:
    """Begins the copies to the host now; called, waits for them. Later work on the device does not change them."""
    if not any(tensor.device.type == "cuda" for tensor in outputs.values()):
        return lambda: {name: tensor.numpy() for name, tensor in outputs.items()}
    copies = {name: torch.empty_like(one, device="cpu", pin_memory=True) for name, one in outputs.items()}
    for name, tensor in outputs.items():
        copies[name].copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Arrays:
        done.synchronize()
        return {name: tensor.numpy() for name, tensor in copies.items()}

    return wait
