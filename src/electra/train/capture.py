"""A piece of GPU work recorded once and replayed: hundreds of kernels for the price of one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

WARM_UPS = 3  # runs before capture, so that nothing is compiled or first allocated inside it


class Captured:
    """`work` as one CUDA graph; calling it copies fresh inputs in and replays.

    Recording runs the work a few times; `changed` lists the tensors that this must leave as they were. Graphs that
    never run at the same time may share a memory `pool`.
    """

    def __init__(
        self,
        work: Callable[..., None],
        inputs: Sequence[Tensor],
        *,
        changed: Sequence[Tensor],
        pool: Any = None,
        warm_ups: int = WARM_UPS,
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        self._graph = torch.cuda.CUDAGraph()
        with unchanged(changed):
            own = _own_stream()
            own.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(own):
                for _ in range(warm_ups):
                    work(*self._inputs)
            torch.cuda.current_stream().wait_stream(own)
            # thread_local: a loader's thread may allocate meanwhile.
            record = torch.cuda.graph(self._graph, pool=pool, stream=own, capture_error_mode="thread_local")
            with _nothing_collected(first=pool is None), record:
                work(*self._inputs)

    def __call__(self, *inputs: Tensor) -> None:
        for own, fresh in zip(self._inputs, inputs, strict=True):
            own.copy_(fresh)
        self._graph.replay()

    @property
    def pool(self) -> Any:
        return self._graph.pool()


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """What the block does to these tensors is undone at its end."""
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)


@contextmanager
def _nothing_collected(*, first: bool = True) -> Iterator[None]:
    """Keep Python from collecting garbage: freeing an old graph would end the recording of a new one.

    What is garbage already is freed before the `first` graph of a pool only: that takes as long as a recording.
    """
    if first:
        gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _own_stream() -> torch.cuda.Stream:
    """The stream in use, or a new one where that is the default, which cannot record.

    The matrix library keeps one workspace a stream, and graphs write to the one they were recorded with. Recorded on
    torch's common capture stream, graphs that run side by side would overwrite each other's and wait for ever.
    """
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current
