"""`python -m electra.bench.op_gains`: what each op's backend gains of a whole training step on this machine.

The step is measured as it is, then once more for each op with that op on the next backend: the reference, or for the
parts of an encoder stack on a GPU the kernel by op in Triton. The rows are those of the matrix in `ops/README.md`.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor

from electra import hardware
from electra.bench.measure import timed
from electra.bench.ours import RATE, make_our_stepper, random_rows
from electra.bench.start import start
from electra.config.load import load
from electra.config.schema import Config
from electra.ops import Chosen, Ops
from electra.ops.dispatch import StackShape, kernels_of, select, stack_plan
from electra.train.execution import Execution, plan_execution

STACK_PARTS = {"layers": "by op", "attention": "triton", "linear_gelu": "triton"}
"""Parts of an encoder stack that CUDA kernels run, and what runs them otherwise."""


@click.command()
@click.option("--preset", default="small", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True)
@click.option("--steps", type=click.IntRange(5), default=200, show_default=True)
@click.option("--only", default="", metavar="OP,...", help="These ops only.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(preset: str, batch: int, steps: int, only: str, overrides: tuple[str, ...]) -> None:
    """The step as it is, and with one op after another on its next backend."""
    config = load(preset, overrides=[f"train.batch_size={batch}", *overrides])
    device = hardware.device(config.train.device)
    execution = plan_execution(config, device, rows=batch)
    rows = random_rows(config, batch).to(device)
    click.echo("| op | backend | step, ms | without it, ms | gain |\n|---|---|---|---|---|")
    before = measure(config, execution, rows, steps)
    for name, ops in variants(config, execution):
        if only and name not in only.split(","):
            continue
        backend = execution.ops.chosen[name].backend if name in execution.ops.chosen else "cuda"
        without = measure(config, replace(execution, ops=ops), rows, steps)
        after = measure(config, execution, rows, steps)  # in turns, since clocks drift
        whole, before = (before + after) / 2, after
        click.echo(f"| {name} | {backend} | {whole:.3f} | {without:.3f} | {100 * (without / whole - 1):+.1f} % |")


def variants(config: Config, execution: Execution) -> list[tuple[str, Ops]]:
    """Each op's name with the ops that leave its backend out."""
    kernels, device, dtype = config.train.kernels, execution.device, execution.dtype
    found = [
        (name, select(kernels, device=device, dtype=dtype, reference=(name,)))
        for name, chosen in execution.ops
        if chosen.backend != "reference"
    ]
    if device.type == "cuda" and execution.ops.chosen["encoder_stack"].backend == "triton":
        for part, width in (("layers", 64), ("layers", 256), ("attention", None), ("linear_gelu", None)):
            title = f"encoder_stack: {part}" + (f" of width {width}" if width else "")
            found.append((title, _with_stack(execution.ops, _stack_without(part, width), title)))
    return found


def measure(config: Config, execution: Execution, rows: Tensor, steps: int) -> float:
    """Milliseconds a step, the median of five stretches."""
    stepper = make_our_stepper(config, execution)
    times = sorted(timed(partial(stepper, rows, RATE), execution.device, steps=steps))
    del stepper
    gc.collect()
    if execution.device.type == "cuda":
        torch.cuda.empty_cache()
    return 1e3 * times[len(times) // 2]


def _stack_without(part: str, width: int | None) -> Any:
    """The op with a part, of all layers or of those of a width, on its next backend."""
    from electra.ops.triton.encoder_stack import encoder_stack

    def run(x_BLD: Tensor, layers: Sequence[Any], *, spans: Any, rotation_2LH: None, **others: Any) -> Tensor:
        (sequences, length, size), first = x_BLD.shape, layers[0]
        shape = StackShape(sequences, length, size, first.heads, len(first.up.weight), spans is not None)
        plan = stack_plan(shape, x_BLD.device)
        if width in (None, size) and plan[part].startswith("cuda"):
            plan[part] = STACK_PARTS[part]
        if plan["attention"] != "cuda" and "256" in plan["layers"]:
            plan["layers"] = "by op"  # that kernel writes what CUDA attention's backward reads
        return encoder_stack(x_BLD, layers, spans=spans, **others, kernels=kernels_of(plan))

    return run


def _with_stack(ops: Ops, run: Any, title: str) -> Ops:
    return Ops(dict(ops.chosen) | {"encoder_stack": Chosen(run, "variant", title)})


if __name__ == "__main__":
    start(command)
