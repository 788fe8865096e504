"""The processes of a run: one, or as many as torchrun started. Sums travel, means are taken once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor

from electra.errors import ConfigError, ElectraError
from electra.train.heartbeat import Heartbeat

TIMEOUT = re.compile("timed out|timeout", re.IGNORECASE)
SOURCE_LINE = re.compile(r"^\[\S+:\d+\] ")  # gloo says where in its source it failed


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among all of them."""

    rank: int = 0
    size: int = 1
    heartbeat: Heartbeat | None = field(default=None, compare=False)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor`, summed over all processes in place."""
        if self.size > 1:
            with self._others():
                torch.distributed.all_reduce(tensor)
        return tensor

    def share(self, batch_size: int, *, key: str = "train.batch_size") -> slice:
        """The rows of a batch that are this process's."""
        if batch_size % self.size:
            raise ConfigError(key, f"{batch_size} is not a multiple of the {self.size} processes")
        each = batch_size // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def any(self, value: bool) -> bool:
        """True on every process when it is true on one."""
        return value if self.size == 1 else bool(self.sum_(self._number(float(value))).item())

    def lead(self, value: int | None) -> int | None:
        """The leading process's value on every process."""
        if self.size == 1:
            return value
        number = self._number(-1.0 if value is None else float(value))
        with self._others():
            torch.distributed.broadcast(number, 0)
        return None if number.item() < 0 else int(number.item())

    def send(self, tensor: Tensor) -> None:
        """Hand a tensor to the leading process."""
        with self._others():
            torch.distributed.send(tensor.contiguous(), 0)

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Fill a tensor of the leading process with what another one sends."""
        with self._others():
            torch.distributed.recv(tensor, rank)

    def by_leader(self, act: Callable[[], int | None], *, others: Callable[[], object] = lambda: None) -> int | None:
        """What `act` returns on the leading process, the only one to run it; its failure is one on every process.

        The other processes do their part meanwhile.
        """
        if self.size == 1:
            return act()
        value, failure = None, None
        if self.leads:
            try:
                value = act()
            except ElectraError as error:
                failure = error
        else:
            others()
        code = self.lead(failure.exit_code if failure else 0)
        if failure is not None:
            raise failure
        if code:
            elsewhere = ElectraError(f"process {self.rank} ends because the leading one failed; its message says why")
            elsewhere.exit_code = code
            raise elsewhere
        return self.lead(value)

    @contextmanager
    def named_when_lost(self) -> Iterator[None]:
        """Around work that waits for other processes inside: where it fails and one is gone, the error names that."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if lost := self._lost():
                raise self._lost_error(lost, error) from error
            raise

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Say in one line which process is gone; the launcher says why."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._lost_error(self._lost(), error) from error

    def _lost(self) -> list[int]:
        return self.heartbeat.lost() if self.heartbeat is not None else []

    def _lost_error(self, lost: list[int], error: RuntimeError) -> ElectraError:
        named = f"process {', '.join(map(str, lost))}" if lost else "another one"
        reason = SOURCE_LINE.sub("", str(error).partition("\n")[0])
        if TIMEOUT.search(reason):
            reason = f"no answer within train.timeout_s ({reason})"
        return ElectraError(f"process {self.rank} lost {named}: {reason}")

    def _number(self, value: float) -> Tensor:
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        return torch.tensor(value, dtype=torch.float64, device=device)

    def close(self) -> None:
        if self.heartbeat is not None:
            self.heartbeat.close()
        if self.size > 1:
            torch.distributed.destroy_process_group()


def process_count() -> int:
    """The processes that torchrun started, before they have met."""
    return _from_launcher("WORLD_SIZE", 1)


def is_leader() -> bool:
    """Whether this process is the one that speaks, before they have met and after they have parted."""
    return _from_launcher("RANK", 0) == 0


def local_rank() -> int:
    """This process's place among those of its machine."""
    return _from_launcher("LOCAL_RANK", 0)


def _from_launcher(name: str, alone: int) -> int:
    text = os.environ.get(name) or str(alone)
    if not text.isdecimal():
        raise ConfigError(name, f"{text!r} is not a count (torchrun sets this variable; otherwise unset it)")
    return int(text)


def join(device: torch.device, *, timeout_s: float) -> World:
    """The world that torchrun described in the environment, or a world of one.

    A process that does not answer for `timeout_s` counts as lost, one that never comes too: every other one ends with
    an error that names it.
    """
    if process_count() == 1:
        return World()
    from torch.distributed.rendezvous import rendezvous

    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        problem = f"it says {process_count()} processes, but {missing[0]} is not set"
        raise ConfigError("WORLD_SIZE", f"{problem} (start them with torchrun, or unset it)")
    rank, size, timeout = _from_launcher("RANK", 0), process_count(), timedelta(seconds=timeout_s)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timeout))
    except RuntimeError as error:  # the store is kept by the process that leads, or by its launcher
        raise World(rank, size)._lost_error([0] if rank else [], error) from error
    # torchrun keeps its store over a restart, addresses of dead processes included: each attempt has names of its own.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    named = torch.distributed.PrefixStore(f"electra-{attempt}", store)  # type: ignore[attr-defined]
    # A store is busy while it waits: the heartbeat has its own connection, or a process that waits would seem lost.
    heartbeat = Heartbeat(named.clone(), rank=rank, size=size)  # type: ignore[attr-defined]
    world = World(rank, size, heartbeat)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        with world._others():
            torch.distributed.init_process_group(backend, store=named, rank=rank, world_size=size, timeout=timeout)
    except ElectraError:
        heartbeat.close()
        raise
    return world
