"""A network's forward over many batches: recorded by shape on a GPU, results fetched while the next batch computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.train.capture import Captured

PAYS = 8
"""A shape that is about to be computed this often is recorded at once, another when it comes up for this time.

On an H200 recording `small` takes 20 to 40 ms, a batch 3 to 5 ms as plain calls and perhaps 1 ms replayed: 8 to 16
batches earn it. The lower end, so that whoever computes the same shapes again and again soon replays them all.
"""
MOST_SHAPES = 64

Outputs = dict[str, Tensor]
Arrays = dict[str, NDArray[Any]]


class Replays:
    """The recordings of one network, by what is computed and the shape of the input."""

    def __init__(self) -> None:
        self._calls: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, tuple[Captured, Outputs]] = {}
        self._pool: Any = None

    def run(self, name: Hashable, compute: Callable[[Tensor], Outputs], rows: Tensor, *, times: int) -> Outputs:
        """`compute(rows)`; what it gives holds until the next call. On a CPU, and for rare shapes, a plain call.

        `times` is how often the caller computes this shape in all, now included; with 0 it is never recorded.
        """
        key = (name, rows.shape)
        self._calls[key] += 1
        if rows.device.type != "cuda" or not times or not self._recorded_now(key, times):
            return compute(rows)
        if key not in self._recorded:
            outputs: Outputs = {}
            captured = Captured(
                lambda inputs: outputs.update(compute(inputs)),
                [rows],
                changed=(),
                pool=self._pool,
                warm_ups=2 if self._pool is None else 1,  # the very first makes what libraries keep
            )
            self._pool = captured.pool
            self._recorded[key] = captured, outputs
        captured, outputs = self._recorded[key]
        captured(rows)
        return outputs

    def _recorded_now(self, key: Hashable, times: int) -> bool:
        pays = max(times, self._calls[key]) >= PAYS
        return key in self._recorded or (pays and len(self._recorded) < MOST_SHAPES)


_REPLAYS: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()


def replays_of(network: nn.Module) -> Replays:
    """The network's own; they go with it. Its weights may change in place, but not move."""
    return _REPLAYS.setdefault(network, Replays())


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, on its way while the host goes on."""
    host = torch.from_numpy(array)
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
