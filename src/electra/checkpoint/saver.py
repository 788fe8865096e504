"""Checkpoints written while the run goes on: its steps wait for a copy of the tensors only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from electra.checkpoint import store
from electra.checkpoint.tensors import InParts

Groups = Mapping[str, Mapping[str, Tensor | InParts]]


class Saver:
    """Saves a run's checkpoints in a thread, one at a time.

    What fails there is raised by the next call of any method but `close`.
    """

    def __init__(self, run: Path, *, keep: int) -> None:
        self._run, self._keep = run, keep
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._host: dict[int, Tensor] = {}
        self.took_s = 0.0
        """What the last save took until it was on the disk."""

    def save(self, *, step: int, tensors: Groups, state: dict[str, Any], first: Callable[[], None]) -> None:
        """Copy the tensors, then save them as they are now; `first` is done before anything is written.

        Tensors in parts are put together with the help of other processes, which wait for it, so these are saved
        before this returns.
        """
        self.wait()
        began = time.monotonic()
        if any(not isinstance(tensor, Tensor) for named in tensors.values() for tensor in named.values()):
            self._write(began, first, step=step, tensors=tensors, state=state)
            return
        copied = self._copied(tensors)  # type: ignore[arg-type]
        write = partial(self._write, began, first, step=step, tensors=copied, state=state)
        self._thread = Thread(target=self._guarded, args=(write,), name="electra-save")
        self._thread.start()

    def check(self) -> None:
        """Raise what has failed so far; does not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """Wait, and raise nothing: what ends the run says why."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, began: float, first: Callable[[], None], **checkpoint: Any) -> None:
        first()
        store.save(self._run, keep=self._keep, **checkpoint)
        self.took_s = time.monotonic() - began

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # raised in the thread that trains
            self._failure = error

    def _copied(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """The same tensors in host memory. Most are views of few buffers, each of which is copied once, as a whole."""
        buffers: dict[int, Tensor] = {}
        found: dict[str, dict[str, Tensor]] = {}
        for group, named in tensors.items():
            for name, tensor in named.items():
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in buffers:
                    buffers[storage.data_ptr()] = self._copy_of(tensor.detach())
                host = buffers[storage.data_ptr()].untyped_storage()
                view = torch.empty(0, dtype=tensor.dtype).set_(
                    host, tensor.storage_offset(), tensor.size(), tensor.stride()
                )
                found.setdefault(group, {})[name] = view
        if any(tensor.is_cuda for named in tensors.values() for tensor in named.values()):
            torch.cuda.current_stream().synchronize()
        self._host = buffers
        return found

    def _copy_of(self, tensor: Tensor) -> Tensor:
        """The bytes of the buffer that a tensor is a view of, in memory that the next save uses again."""
        storage = tensor.untyped_storage()
        bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        host = self._host.get(storage.data_ptr())
        if host is None or len(host) != len(bytes_):
            # Page-locked: the GPU writes it at its full rate, 171 MB of `small` in 4 ms.
            host = torch.empty(len(bytes_), dtype=torch.uint8, pin_memory=tensor.is_cuda)
        return host.copy_(bytes_, non_blocking=True)
