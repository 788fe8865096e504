"""The first steps on a GPU whose cache is empty: what compiles when, and what is computed.

Run by `test_compile_launches` in a process of its own, since what is compiled stays compiled.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor
from triton import knobs

from electra.batches.layout import separator_of
from electra.batches.sequences import unpack
from electra.bench.ours import SPECIALS, random_rows
from electra.config.load import load
from electra.config.schema import Config
from electra.model.electra import build_model
from electra.objective.registry import Resources, build_objective
from electra.ops.compile_ahead import compile_sources
from electra.ops.dispatch import select
from electra.train.optim import make_update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

DEVICE, DTYPE, STEPS = torch.device("cuda", 0), torch.bfloat16, 20
compiled: list[str] = []


def note(*, fn: object, **others: object) -> None:
    compiled.append(fn.name)  # type: ignore[attr-defined]


def first_steps(config: Config, rows: Tensor, *, ahead: bool) -> tuple[Tensor, list[dict[str, float]]]:
    """The logits of an evaluation, then the totals of the first step and of those after it."""
    ops = select(device=DEVICE, dtype=DTYPE)
    model = build_model(config, ops=ops, dtype=DTYPE)
    master = Master(model, compute=DTYPE, device=DEVICE)
    objective = build_objective(config, Resources(SPECIALS, ops, lambda: torch.ones(config.model.vocab_size), DEVICE))
    step = Stepper(
        model,
        master,
        make_update(master, config.optim, config.generator, ops=ops),
        objective,
        ops=ops,
        world=World(),
        micro_batch=len(rows),
        compiled=False,
        captured=True,
        separator=separator_of(config.data, SPECIALS),
        masking=config.masking,
    )
    if ahead:
        before = master.weights.clone()
        began = time.monotonic()
        step.compile_kernels(rows)
        print(f"{config.preset}: {len(compiled)} kernels in {time.monotonic() - began:.2f} s")
        assert torch.equal(before, master.weights)
        assert not master.average.any() and not master.square.any()
        compiled.clear()
    began = time.monotonic()
    with torch.no_grad():
        found = master.run(objective.evaluate, model, unpack(rows, separator_of(config.data, SPECIALS)))
    torch.cuda.synchronize()
    evaluated = time.monotonic() - began
    totals = []
    for numbers in (range(1), range(1, STEPS)):
        for number in numbers:
            step(rows.roll(number, 0), 1e-4)
        totals.append(step.read())
    print(
        f"{config.preset}, {ahead=}: evaluation {evaluated:.2f} s, then {STEPS} steps {time.monotonic() - began:.2f} s"
    )
    assert not (ahead and compiled), f"compiled after all: {compiled}"
    logits = found.logits_BL
    assert logits is not None
    return logits.clone(), totals


knobs.runtime.jit_post_compile_hook = note
compile_sources(device=DEVICE, dtype=DTYPE)
for preset in sys.argv[1:] or ("small", "modern-small"):
    config = load(preset, overrides=["model.layers=2"])
    rows = random_rows(config, 128).to(DEVICE)
    (logits, (first, later)), (same, (again, close)) = (
        first_steps(config, rows, ahead=ahead) for ahead in (True, False)
    )
    assert torch.equal(logits, same) and first == again, (first, again)
    # The gradient of the embeddings is added up in any order; its norm shows that most.
    for name, value in close.items():
        assert abs(later[name] - value) <= (0.1 if name == "grad_norm" else 2e-3) * abs(value), (name, later, close)
