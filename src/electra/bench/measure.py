"""One measurement, in a process of its own: `python -m electra.bench.measure JOB RESULT`.

A process of its own has no memory, compiled code or allocator's habits of the measurement before. What went wrong is a
result like any other.
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from electra import hardware
from electra.bench.grid import PEERS, PLAIN, Job
from electra.errors import ElectraError, is_out_of_memory
from electra.fsio import write_json
from electra.jsontext import parse_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from electra.config.schema import Config

    Step = Callable[[], object]

WARM_UP = 3
"""Steps before the clock runs, the first included."""
WARM_UP_S = 1.0
"""Seconds that a GPU is kept busy before the clock runs: its frequency needs them to settle."""
STRETCHES = 5
"""Parts that the timed steps are split into; the median part counts, so that one hiccup does not."""
GIB = 2**30
LONGEST_REASON = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What one measurement found."""

    tokens_per_s: float
    ms_per_step: float
    stretches_ms: list[float]
    """Milliseconds a step in each stretch; their median is `ms_per_step`."""
    memory_gib: float
    """Peak memory: of tensors on a GPU, of the whole process on a CPU."""
    start_s: float
    """Seconds from building the model to the end of the first step, compiling included."""
    precision: str
    roofline_tokens_per_s: float | None
    """Tokens a second if the needed matrix products ran at the data sheet's peak and nothing else took time."""
    mfu: float | None
    """The share of that reached; None where the peak is not known."""
    profile: str = ""
    ops: list[dict[str, str]] = field(default_factory=list)
    """Of our step: op, backend and reason, op by op."""
    stacks: list[dict[str, str]] = field(default_factory=list)
    """Of our step on a GPU: the kernels of each encoder at this shape."""


def measure(job: Job) -> Figures:
    """The figures of one job, measured here and now."""
    import torch

    from electra.bench.ours import random_rows
    from electra.model.cost import stage_flops_per_token

    config = _config(job)
    device = hardware.device(config.train.device)
    rows = random_rows(config, job.batch).to(device)
    build, precision = _builder(job.kind, config, rows)
    start_s, step = _started(build, device)
    times = timed(step, device, steps=job.steps)
    seconds, tokens = statistics.median(times), job.batch * job.length
    peak = hardware.peak_flops(device, precision)
    # Of a rate that falls the step has the last one.
    counted = replace(config, masking=replace(config.masking, rate_start=0.0))
    roofline = peak / stage_flops_per_token(counted)[-1] if peak else None
    peak_bytes = torch.cuda.max_memory_allocated() if device.type == "cuda" else hardware.peak_resident_bytes()
    profile = _profile(step, device) if job.profile else ""
    ops, stacks = _chosen(job, config, device)
    return Figures(
        tokens_per_s=tokens / seconds,
        ms_per_step=seconds * 1e3,
        stretches_ms=[one * 1e3 for one in times],
        memory_gib=peak_bytes / GIB,
        start_s=start_s,
        precision={torch.bfloat16: "bf16", torch.float32: "fp32"}[precision],
        roofline_tokens_per_s=roofline,
        mfu=tokens / seconds / roofline if roofline else None,
        profile=profile,
        ops=ops,
        stacks=stacks,
    )


def _config(job: Job) -> Config:
    """The job's settings, with what its kind of step says of the kernels."""
    config = job.config
    return replace(config, train=replace(config.train, kernels="plain")) if job.kind == PLAIN else config


def _chosen(job: Job, config: Config, device: torch.device) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """What our step ran, asked after the clock has stopped; of a peer nothing."""
    if job.kind in PEERS.values():
        return [], []
    from electra.bench.chosen_ops import chosen_ops

    return chosen_ops(config, device, rows=job.batch)


def _builder(kind: str, config: Config, rows: Tensor) -> tuple[Callable[[], Step], torch.dtype]:
    """What makes the step, with everything imported that it needs, and what it will multiply in."""
    if kind in PEERS.values():
        from electra.bench.peer import peer_precision, peer_step

        precision = peer_precision(config.train.precision, rows.device)
        return partial(peer_step, config, rows, compiled=kind == PEERS["compiled"]), precision
    from electra.bench.ours import our_step

    if rows.device.type == "cpu":
        hardware.keep_freed_memory()
    precision = hardware.compute_dtype(config.train.precision, rows.device)
    return partial(our_step, config, rows), precision


def _started(build: Callable[[], Step], device: torch.device) -> tuple[float, Step]:
    began = time.perf_counter()
    step = build()
    step()
    wait(device)
    return time.perf_counter() - began, step


def timed(step: Step, device: torch.device, *, steps: int) -> list[float]:
    """Seconds a step in each stretch. Nothing waits for the device within one, as nothing does in a run."""
    began, done = time.perf_counter(), 1
    while done < WARM_UP or (device.type == "cuda" and time.perf_counter() - began < WARM_UP_S):
        step()
        wait(device)
        done += 1
    parts = min(STRETCHES, steps)
    times = []
    for number in range(parts):
        count = steps // parts + (number < steps % parts)
        mark = time.perf_counter()
        for _ in range(count):
            step()
        wait(device)
        times.append((time.perf_counter() - mark) / count)
    return times


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def _profile(step: Step, device: torch.device) -> str:
    """One step's time by kernel, or by operation on a CPU."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiled:
        step()
        wait(device)
    key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table: str = profiled.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=70)
    return table


def reason(error: BaseException) -> str:
    """One line that says why there are no figures."""
    text = str(error)
    if isinstance(error, ElectraError):
        return text
    if isinstance(error, ModuleNotFoundError):
        extra = "'electra[hf]'" if error.name == "transformers" else error.name
        return f"the package '{error.name}' is missing (pip install {extra})"
    if is_out_of_memory(error) or "out of memory" in text:
        return "out of memory"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}".removesuffix(": ")[:LONGEST_REASON]


def main(arguments: list[str]) -> None:
    """Measure a job given as JSON and write its figures, or why there are none, to a file."""
    from electra.train.interrupt import end_with_parent

    job, result = parse_json(arguments[0], where="the job"), Path(arguments[1])
    end_with_parent()
    try:
        found = asdict(measure(Job(**job | {"overrides": tuple(job["overrides"])})))
    except Exception as error:
        traceback.print_exc()
        found = {"error": reason(error)}
    write_json(result, found)


if __name__ == "__main__":
    main(sys.argv[1:])
