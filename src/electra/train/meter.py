"""Totals on the device turned into one log line: losses, learning rate, speed, memory."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from electra import hardware
from electra.train.step import Stepper

Line = dict[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Yardstick:
    """What speed is measured against."""

    flops_per_token: float
    peak_flops: float | None


class Meter:
    """Reads a stepper's totals; each reading covers the steps since the one before."""

    def __init__(self, stepper: Stepper, yardstick: Yardstick) -> None:
        self._stepper, self._yardstick = stepper, yardstick
        self._since = time.monotonic()

    def read(self, *, lr: float) -> tuple[Line, float]:
        """A log line, and the tokens trained on since the last one. Waits for the device."""
        totals = self._stepper.read()
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        done = totals["steps"] - totals["skipped"]
        means = self._stepper.objective.means(totals)
        line: Line = {f"train/{name}": value if done else math.nan for name, value in means.items()}
        speed = totals["tokens"] / seconds
        peak = self._yardstick.peak_flops
        line |= {
            "optim/lr": lr,
            "optim/grad_norm": totals["grad_norm"],
            "optim/skipped": totals["skipped"],
            "perf/tokens_per_s": speed,
            "perf/steps_per_s": totals["steps"] / seconds,
            "perf/mfu": None if peak is None else speed * self._yardstick.flops_per_token / peak,
            "perf/memory_gib": peak_memory_gib(),
        }
        return line, totals["tokens"]

    def restart(self) -> None:
        """Leave the time since the last reading (an evaluation, a save) out of the next one."""
        self._since = time.monotonic()


def peak_memory_gib() -> float:
    """Peak memory: the GPU's where one is used, else this process's."""
    if torch.cuda.is_available() and torch.cuda.max_memory_reserved():
        return torch.cuda.max_memory_reserved() / 2**30
    return hardware.peak_resident_bytes() / 2**30
