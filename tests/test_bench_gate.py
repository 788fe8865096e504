"""The parts of the convergence gate that need no GPU: C++ ops in the place of fused ones, and a fault in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tiny_runs import make_data
from torch import Tensor

from electra.bench import bitwise, gate, op_gains, stack_check
from electra.bench.gate import Check, table
from electra.bench.gradient_check import TILE, GradientCheck
from electra.bench.ours import SPECIALS, random_rows
from electra.bench.planted_faults import with_fault
from electra.config.load import load
from electra.ops import Chosen, Ops
from electra.ops.dispatch import select
from electra.train.execution import Execution, plan_execution

CPU = torch.device("cpu")
# In fp32: a CPU that multiplies bf16 would take that, and its rounding is larger than the faults planted here.
CONFIG = load("tiny", overrides=["train.batch_size=4", "optim.lr=1e-4", "model.layers=2", "train.precision=fp32"])


def checked(ops: Ops | None = None, *, steps: int = 2) -> GradientCheck:
    execution: Execution = plan_execution(CONFIG, CPU, rows=4)
    check = GradientCheck(CONFIG, SPECIALS, replace(execution, ops=ops or execution.ops), random_rows(CONFIG, 4))
    for _ in range(steps):
        check.step(random_rows(CONFIG, 4))
    return check


def test_right_gradients_pass() -> None:
    found = checked().read()
    assert 0 < found["mean tile"] <= found["worst tile"] < 1e-3, "C++ and reference round differently, and no more"
    assert found["worst sequence"] < 1e-3


def test_one_wrong_tile_of_one_gradient_is_seen() -> None:
    """The second tile of an MLP's first matrix is zero in the second of two steps."""
    ops, calls = plan_execution(CONFIG, CPU, rows=4).ops, iter(range(1000))

    class Faulty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor) -> Tensor:
            return weight.view_as(weight)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            (gradient,) = (one.clone() for one in gradients)
            if next(calls) == 4:  # one of two layers of two networks in two steps
                gradient[TILE : 2 * TILE, :TILE] = 0
            return gradient

    healthy = ops.chosen["linear_gelu"].run
    run = lambda x, weight, bias: healthy(x, Faulty.apply(weight), bias)  # noqa: E731
    by_op = select("plain", device=CPU, dtype=torch.float32).chosen["encoder_stack"]
    faulty = Ops(dict(ops.chosen) | {"linear_gelu": Chosen(run, "fault", "planted"), "encoder_stack": by_op})
    assert checked(faulty, steps=1).read()["worst tile"] < 1e-3
    calls = iter(range(1000))
    assert checked(faulty).read()["worst tile"] > 0.5


def test_replays_are_compared_bit_by_bit() -> None:
    check = checked(steps=0)
    differing, promised = check.replay(random_rows(CONFIG, 4), 3)
    assert differing == 0 and promised > 100_000
    calls, backward = iter(range(100)), check.fused.backward

    def now_and_then(rows: Tensor) -> None:
        backward(rows)
        if next(calls) == 2:
            parameter = next(p for n, p in check.fused.model.named_parameters() if n.endswith("up.weight"))
            assert parameter.grad is not None
            parameter.grad[0, 0] *= 1.0001

    check.fused.backward = now_and_then  # type: ignore[method-assign]
    assert check.replay(random_rows(CONFIG, 4), 4)[0] == 1


def test_the_table_names_what_failed() -> None:
    shown = table([Check("replays", "3", "0", False), Check("tests", "2 passed", "none fails", True)])
    assert "| replays | 3 | 0 | FAIL |" in shown and "| tests | 2 passed | none fails | pass |" in shown


def test_a_stack_that_differs_now_and_then_is_seen() -> None:
    """Kernels by op on a CPU, with one element of one sequence's gradient off in one of three repetitions."""
    pytest.importorskip("triton", reason="kernels are written in Triton")
    from ops_backends import STACKS

    healthy, calls = STACKS["short"], iter(range(100))
    stack = stack_check.make_stack(2, 16, 1, device=CPU, dtype=torch.float32, width=16, heads=1)

    def backward(*arguments: Any) -> Tensor:
        gradient_TD = healthy.backward(*arguments)
        gradient_TD[20, 5] *= 1 + 1e-6 * (next(calls) == 2)  # the second repetition: a pass before them makes buffers
        return gradient_TD

    repetitions, sequences = stack_check.repeat(stack, replace(healthy, backward=backward), 3)
    assert (repetitions.figure, repetitions.passed, sequences.figure) == ("1", False, "1")
    wrong = replace(healthy, backward=lambda *arguments: 1.2 * healthy.backward(*arguments))
    assert [check.passed for check in stack_check.compare(stack, wrong, healthy)] == [True, False, True]


def test_the_stack_check_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_check.hardware, "device", lambda name: CPU)  # a GPU before Hopper would do as well
    done = CliRunner().invoke(stack_check.command, [])
    assert "the kernels do not run here: " in str(done.exception)


def test_changed_stacks_take_what_every_stack_does() -> None:
    """On a CPU their kernels are those by op: the same bits as without a change."""
    pytest.importorskip("triton", reason="kernels are written in Triton")
    from ops_backends import triton_ops

    stack = stack_check.make_stack(1, 16, 1, device=CPU, dtype=torch.float32, width=16, heads=1)
    changed = op_gains._with_stack(triton_ops(), op_gains._stack_without("layers", 256), "changed")
    masks = {"lengths_B": stack.lengths_B, "spans": None, "hidden_LL": None}
    with torch.no_grad():
        outputs = [
            ops.encoder_stack(stack.x_BLD, list(stack.layers), **masks, keys_B=stack.keys_B, recompute=False)
            for ops in (triton_ops(), changed, with_fault(triton_ops(), "tile-early", CPU))
        ]
    assert all(torch.equal(one, outputs[0]) for one in outputs[1:])


def test_gains_of_single_ops() -> None:
    options = ["--preset", "tiny", "--batch", "2", "--steps", "5", "--only", "linear_gelu", "model.layers=1"]
    done = CliRunner().invoke(op_gains.command, [*options, "train.device=cpu"])
    assert done.exit_code == 0, done.output
    chosen = plan_execution(CONFIG, CPU, rows=2).ops.chosen["linear_gelu"]
    assert done.output.count("| linear_gelu | ") == (chosen.backend == "cpp")


def test_two_equal_trees_train_alike(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    source = Path(__file__).parents[1] / "src"
    settings = (
        "train.steps=2",
        "train.batch_size=2",
        "optim.warmup_steps=1",
        "evaluate.sequences=2",
        "train.device=cpu",
    )
    first = bitwise.run(source, data, tmp_path / "a", "tiny", "one", settings)
    assert first == bitwise.run(source, data, tmp_path / "b", "tiny", "one", settings)
    other = bitwise.run(source, data, tmp_path / "c", "tiny", "two", (*settings, "seed=1"))
    assert "failed" not in first and other[1] != first[1]


def test_a_test_process_that_dies_fails_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real pytest processes over one file: a test that passes, then one that ends its process."""
    (tmp_path / "test_gpu.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.gpu\n"
        "def test_passes(): pass\n"
        "@pytest.mark.gpu\n"
        "def test_dies(): os.environ.get('LIVES') or os._exit(11)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(gate, "TESTS", tmp_path)
    monkeypatch.setattr(gate, "TEST_PROCESSES", 1)
    assert not gate.run_tests(60).passed
    monkeypatch.setenv("LIVES", "1")
    assert gate.run_tests(60) == Check("GPU tests", "2 passed", "none fails", True)
