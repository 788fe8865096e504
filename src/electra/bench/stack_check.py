"""`python -m electra.bench.stack_check`: are the encoder's gradients by its layer kernels those by op, and always?

All sequences and layers of a discriminator of `small`: each sequence's gradient by the layer kernels beside that by op;
then thousands of repetitions on the same inputs, whose gradients must have equal bits; then both timed. A tile that is
read too early once in thousands of passes shows here, where a unit test of two sequences cannot see it.

Shapes: B sequences, L length, D width.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click
import torch
from torch import Tensor, nn

from electra import hardware
from electra.bench.gate import WORST_SEQUENCE, WORST_TILE, Check, table
from electra.bench.gradient_check import recorded
from electra.bench.measure import timed
from electra.bench.start import start
from electra.errors import ElectraError
from electra.model.layers import Layer
from electra.ops.dispatch import cuda_missing, host_ops, kernels_of

if TYPE_CHECKING:
    from electra.ops.triton.stack_buffers import StackKernels

DROPOUT = 0.1
PLANS = {"layer kernels": "cuda (width 256)", "by op": "by op"}


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers with their inputs, and the gradient of what they give."""

    layers: nn.ModuleList
    x_BLD: Tensor
    gradient_BLD: Tensor
    lengths_B: Tensor
    keys_B: Tensor

    def gradients(self, kernels: StackKernels) -> list[Tensor]:
        """Of the input and of all weights: one pass forward and one backward."""
        from electra.ops.triton.encoder_stack import encoder_stack

        y_BLD = encoder_stack(
            self.x_BLD, list(self.layers), lengths_B=self.lengths_B, spans=None, hidden_LL=None, keys_B=self.keys_B,
            recompute=False, kernels=kernels,
        )  # fmt: skip
        return list(torch.autograd.grad(y_BLD, [self.x_BLD, *self.layers.parameters()], self.gradient_BLD))


@click.command()
@click.option("--sequences", type=click.IntRange(1), default=128, show_default=True)
@click.option("--length", type=click.IntRange(16, 128), default=128, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=12, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5000, show_default=True)
def command(sequences: int, length: int, layers: int, repeats: int) -> None:
    """Gradients by the layer kernels of width 256 beside those by op. Exit code 1 where one check fails."""
    device = hardware.device("cuda")
    if lacks := cuda_missing(device):
        raise ElectraError(f"the kernels do not run here: {lacks}")
    stack = make_stack(sequences, length, layers, device=device, dtype=torch.bfloat16)
    kernels = {
        name: kernels_of({"layers": plan, "attention": "cuda", "linear_gelu": "cuda"}) for name, plan in PLANS.items()
    }
    fused, by_op = kernels.values()
    checks = compare(stack, fused, by_op)
    checks += repeat(stack, fused, repeats)
    for name, one in kernels.items():
        checks.append(Check(f"ms forward and backward, {name}", f"{milliseconds(stack, one):.3f}", "", True))
    click.echo(table(checks))
    sys.exit(0 if all(check.passed for check in checks) else 1)


def make_stack(
    sequences: int, length: int, layers: int, *, device: torch.device, dtype: torch.dtype, width: int = 256,
    heads: int = 4,
) -> Stack:  # fmt: skip
    """Random layers and inputs, the same each time; lengths from a quarter to the whole."""
    torch.manual_seed(0)
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT}
    made = nn.ModuleList(Layer(width, heads, 4 * width, **rates, ops=host_ops("plain")) for _ in range(layers))
    for name, weight in made.named_parameters():
        weight.data = weight.data.to(device, torch.float32 if "norm" in name else dtype)
    x_BLD, gradient_BLD = torch.randn(2, sequences, length, width).to(device, dtype)
    lengths_B = torch.linspace(length // 4, length, sequences).int().to(device)
    keys_B = torch.arange(sequences, dtype=torch.int32, device=device) * 7919
    return Stack(made, x_BLD.requires_grad_(), gradient_BLD, lengths_B, keys_B)


def compare(stack: Stack, kernels: StackKernels, others: StackKernels) -> list[Check]:
    """The largest relative difference of one sequence's gradient at the input, and of one weight's."""
    mine, theirs = ([one.float() for one in stack.gradients(each)] for each in (kernels, others))
    sequences = max(map(_difference, mine[0], theirs[0]))
    names = [name for name, _ in stack.layers.named_parameters()]
    weights = {name: _difference(*pair) for name, *pair in zip(names, mine[1:], theirs[1:], strict=True)}
    worst = max(weights, key=lambda name: weights[name])
    finite = all(one.isfinite().all() for one in mine)
    return [
        Check("gradients", "finite" if finite else "not finite", "finite", finite),
        Check("worst sequence's gradient", f"{sequences:.4f}", f"{WORST_SEQUENCE:g}", sequences <= WORST_SEQUENCE),
        Check(f"worst weight's gradient ({worst})", f"{weights[worst]:.4f}", f"{WORST_TILE:g}",
              weights[worst] <= WORST_TILE),
    ]  # fmt: skip


def repeat(stack: Stack, kernels: StackKernels, count: int) -> list[Check]:
    """How many of `count` repetitions differ in any bit from the first, and in how many sequences."""
    first = [torch.zeros_like(one) for one in stack.gradients(kernels)]
    device = stack.x_BLD.device
    differing, again = (torch.zeros((), dtype=dtype, device=device) for dtype in (torch.int64, torch.bool))
    wrong_B = torch.zeros(len(stack.x_BLD), dtype=torch.int64, device=device)

    def work(_: Tensor) -> None:
        found = stack.gradients(kernels)
        others = [_bits(one) != _bits(old) for one, old in zip(found, first, strict=True)]
        differing.add_(torch.stack([other.any() for other in others]).any() & again)
        wrong_B.add_(others[0].flatten(1).any(1) & again)
        for old, one in zip(first, found, strict=True):
            old.copy_(torch.where(again, old, one))
        again.fill_(True)

    replay = recorded(work, stack.keys_B, changed=(*first, differing, again, wrong_B))
    for _ in range(count):
        replay(stack.keys_B)
    bad, sequences = int(differing.item()), int((wrong_B > 0).sum().item())
    return [
        Check(f"repetitions that differ, of {count:,}", str(bad), "0", bad == 0),
        Check(f"sequences in which they differ, of {len(wrong_B)}", str(sequences), "0", sequences == 0),
    ]


def milliseconds(stack: Stack, kernels: StackKernels, *, steps: int = 200) -> float:
    """Of one pass forward and backward, the median of five stretches."""

    def work(_: Tensor) -> None:
        stack.gradients(kernels)

    run: Callable[[], None] = partial(recorded(work, stack.keys_B, changed=()), stack.keys_B)
    return 1e3 * statistics.median(timed(run, stack.x_BLD.device, steps=steps))


def _difference(mine: Tensor, other: Tensor) -> float:
    """Relative to the norm of the other."""
    return float((mine - other).norm() / other.norm().clamp(min=1e-30))


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32 if x.element_size() == 4 else torch.int16)


if __name__ == "__main__":
    start(command)
